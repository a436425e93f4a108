#![no_main]
ringfold_fuzz_targets::target!("state_transfer");
