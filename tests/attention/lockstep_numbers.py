"""Operations on numbers, of a kernel that runs in NumPy: each by the name that MLIR has for it."""

import operator

import jax.numpy as jnp
import numpy as np

DTYPES = {
    "i1": np.bool_,
    "i8": np.uint8,
    "i32": np.int32,
    "i64": np.int64,
    "index": np.int64,
    "f32": np.float32,
    # Of these only the bytes are known.
    "bf16": np.uint16,
    "f16": np.uint16,
    **{
        f"vector<{count}x{kind}>": np.dtype(f"V{count * size}")
        for kind, size in {"bf16": 2, "f16": 2, "f32": 4, "i32": 4}.items()
        for count in (1, 2, 4, 8)
    },
}


class Numbers:
    """The operations; operands and results are arrays, [programs, threads] or [1, 1]."""

    def arith_constant(self, op):
        value, dtype = op.attributes["value"], np.dtype(DTYPES[str(op.results[0].type)])
        if dtype.kind == "V":
            assert value.get_splat_value().value == 0
            return np.zeros((1, 1), dtype)
        exact = np.float64 if dtype.kind == "f" else np.int64
        return np.array(value.value, exact).astype(dtype).reshape(1, 1)

    def arith_index_cast(self, op, x):
        return x.astype(DTYPES[str(op.results[0].type)])

    arith_trunci = arith_index_cast

    def arith_bitcast(self, op, x):
        return x.view(DTYPES[str(op.results[0].type)])

    def arith_extui(self, op, x):
        return unsigned(x).astype(DTYPES[str(op.results[0].type)])

    def arith_cmpi(self, op, x, y):
        signed = "eq ne lt le gt ge".split()
        number = op.attributes["predicate"].value
        if number >= len(signed):
            number, x, y = number - 4, unsigned(x), unsigned(y)
        return getattr(operator, signed[number])(x, y)

    def arith_cmpf(self, op, x, y):
        assert op.attributes["predicate"].value == 13, "only une: not equal, or NaN"
        return x != y

    def arith_truncf(self, op, x):
        dtypes = {"bf16": jnp.bfloat16, "f16": np.float16}
        return x.astype(dtypes[str(op.results[0].type)]).view(np.uint16)

    def math_exp2(self, op, x):
        return np.exp2(x)

    def arith_select(self, op, condition, x, y):
        return np.where(condition, x, y)

    def llvm_mlir_undef(self, op):
        return np.zeros((1, 1), DTYPES[str(op.results[0].type)])

    def llvm_intr_ctpop(self, op, x):
        return np.bitwise_count(unsigned(x)).astype(x.dtype)

    llvm_mlir_constant = arith_constant

    def llvm_ptrtoint(self, op, x):
        return x

    llvm_inttoptr = llvm_ptrtoint


def unsigned(x):
    return x if x.dtype.kind in "ub" else x.view(f"u{x.dtype.itemsize}")


def as_unsigned(function):
    def method(_, op, x, y):
        return function(unsigned(x), unsigned(y)).view(x.dtype)

    return method


def elements(x, dtype):
    """The elements of vectors, along another axis."""
    return np.ascontiguousarray(x)[..., None].view(dtype)


def by_element(function):
    def method(_, op, x, y):
        if x.dtype.kind != "V":
            return function(x, y)
        assert "f32" in str(op.results[0].type), "of others only the bytes are known"
        return function(elements(x, np.float32), elements(y, np.float32)).view(x.dtype)[..., 0]

    return method


def truncated(x, y):
    return np.trunc(x / y).astype(x.dtype)


Numbers.arith_sitofp = Numbers.arith_fptosi = Numbers.arith_index_cast  # `astype` truncates
for _name, _function in {
    "arith_addi llvm_add": operator.add,
    "arith_subi": operator.sub,
    "arith_muli llvm_mul": operator.mul,
    "arith_andi": operator.and_,
    "arith_ori": operator.or_,
    "arith_xori": operator.xor,
    "arith_shli": operator.lshift,
    "arith_divsi": truncated,
    "arith_remsi": np.fmod,
    "arith_maxsi": np.maximum,
}.items():
    for _each in _name.split():
        setattr(Numbers, _each, lambda _, op, x, y, function=_function: function(x, y))
for _name, _function in {
    "arith_addf": operator.add,
    "arith_subf": operator.sub,
    "arith_mulf": operator.mul,
    "arith_divf": operator.truediv,
    "arith_maximumf": np.maximum,
}.items():
    setattr(Numbers, _name, by_element(_function))
for _name, _function in {
    "arith_divui": operator.floordiv,
    "arith_remui": operator.mod,
    "arith_minui": np.minimum,
    "arith_shrui": operator.rshift,
}.items():
    setattr(Numbers, _name, as_unsigned(_function))
