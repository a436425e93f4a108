//! Whole Ringfold runs in virtual time from one seed.
#![forbid(unsafe_code)]
