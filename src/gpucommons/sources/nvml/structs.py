"""The driver's structures that are read every second, as plain ctypes.

nvidia-ml-py's structures read every attribute through a Python function, which costs more than the driver call.
"""

from ctypes import Structure, Union, c_double, c_int, c_int64, c_longlong, c_uint, c_ulong, c_ulonglong


class Utilization(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class Memory(Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class MemoryV2(Structure):
    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


class Value(Union):
    _fields_ = (
        ("double", c_double),
        ("uint", c_uint),
        ("ulong", c_ulong),
        ("ulonglong", c_ulonglong),
        ("longlong", c_longlong),
        ("int", c_int),
    )


# The member of the union for each value type.
VALUE_MEMBERS = ("double", "uint", "ulong", "ulonglong", "longlong", "int")


class FieldValue(Structure):
    _fields_ = (
        ("field_id", c_uint),
        ("scope_id", c_uint),
        ("timestamp", c_int64),
        ("latency_us", c_int64),
        ("value_type", c_uint),
        ("code", c_uint),
        ("value", Value),
    )


def value_of(field: FieldValue) -> int | float | None:
    """The value, by the type that the driver reports; None for an unknown type."""
    kind = field.value_type
    return getattr(field.value, VALUE_MEMBERS[kind]) if kind < len(VALUE_MEMBERS) else None


class Violation(Structure):
    _fields_ = (("reference_time_us", c_ulonglong), ("violation_ns", c_ulonglong))
