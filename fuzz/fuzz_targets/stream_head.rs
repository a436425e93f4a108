#![no_main]
ringfold_fuzz_targets::target!(ringfold_fabric::fuzzing::DECODERS, "stream_head");
