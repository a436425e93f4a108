"""Element types, packets and reductions."""

from __future__ import annotations

from enum import Enum


class DataType(Enum):
    """Element types."""

    int32 = "int32"
    uint32 = "uint32"
    uint8 = "uint8"
    int8 = "int8"
    int64 = "int64"
    uint64 = "uint64"
    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"
    float8_e4m3fn = "float8_e4m3fn"
    float8_e5m2 = "float8_e5m2"


class PacketType(Enum):
    """Packet formats: data and flag in one store."""

    LL8 = "LL8"
    LL16 = "LL16"


class ReduceOp(Enum):
    """Reductions."""

    SUM = "SUM"
    MIN = "MIN"
    MAX = "MAX"
    NOP = "NOP"
