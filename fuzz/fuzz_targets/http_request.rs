#![no_main]
ringfold_fuzz_targets::target!(ringfold::fuzzing::DECODERS, "http_request");
