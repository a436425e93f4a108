#![no_main]
ringfold_fuzz_targets::target!(ringfold_sim::fuzzing::DECODERS, "recorded_scenario");
