#![no_main]
ringfold_fuzz_targets::target!("control_to_peer");
