#![no_main]
ringfold_fuzz_targets::target!(ringfold_cuda::fuzzing::DECODERS, "device_records");
