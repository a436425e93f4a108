#![no_main]
ringfold_fuzz_targets::target!("stream_head");
