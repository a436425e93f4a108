#![no_main]
ringfold_fuzz_targets::target!("tuning_file");
