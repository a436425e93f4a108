#![no_main]
ringfold_fuzz_targets::target!("port_records");
