#![no_main]
ringfold_fuzz_targets::target!("device_group");
