#![no_main]
ringfold_fuzz_targets::target!(ringfold_fuzz::proto::DECODERS, "doctor_request");
