#![no_main]
ringfold_fuzz_targets::target!("shared_ring");
