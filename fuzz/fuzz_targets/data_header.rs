#![no_main]
ringfold_fuzz_targets::target!("data_header");
