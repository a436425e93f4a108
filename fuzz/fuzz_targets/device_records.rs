#![no_main]
ringfold_fuzz_targets::target!("device_records");
