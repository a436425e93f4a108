#![no_main]
ringfold_fuzz_targets::target!("channel");
