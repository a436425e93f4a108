//! Every loop over tensor bytes: reductions, quantisation, hashing, conversions.

