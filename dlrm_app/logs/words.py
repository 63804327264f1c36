"""Reads numbers of up to eight characters at once: as the bytes of a word, the first character the lowest."""

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # it has none
from numba import types
from numba.extending import intrinsic

from dlrm_app.kernels.compiled import Untyped, njit

WORD = 8
"""Characters in a word."""
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_0, _3, _4, _6, _8, _16, _32, _63 = (np.uint64(bits) for bits in (0, 3, 4, 6, 8, 16, 32, 63))
_ZERO_DIGITS, _TO_CARRY = np.uint64(0x3030303030303030), np.uint64(0x7676767676767676)
_HIGH_BITS = np.uint64(0x8080808080808080)
_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_ONES = np.uint64(0x0101010101010101)
_LOWER_CASE = np.uint64(0x2020202020202020)
_FROM_0, _ABOVE_9 = np.uint64(0x5050505050505050), np.uint64(0x4646464646464646)
_FROM_A, _ABOVE_F = np.uint64(0x1F1F1F1F1F1F1F1F), np.uint64(0x1919191919191919)
_EVEN_BYTES, _EVEN_PAIRS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_LOW_32 = np.uint64(0xFFFFFFFF)


@intrinsic
def load_word(typing_context, text, at):  # type: ignore[no-untyped-def]  # numba's protocol
    """text[at:at + 8] as a little-endian uint64, in one unaligned load."""

    def generate(context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped) -> Untyped:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(array.data, [arguments[1]])
        word = ir.IntType(64)
        loaded = builder.load(builder.bitcast(pointer, word.as_pointer()))
        loaded.align = 1
        return loaded

    return types.uint64(text, types.intp), generate


@intrinsic
def trailing_zeros(typing_context, word):  # type: ignore[no-untyped-def]  # numba's protocol
    """The number of zero bits below the lowest one bit; 64 if there is none."""

    def generate(context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped) -> Untyped:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@njit(nogil=True, cache=True, inline="always")
def load_field(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """A word that begins with text[start:stop], which has up to eight bytes; what follows them is not defined."""
    if start + WORD <= len(text):
        return load_word(text, start)
    word = np.uint64(0)
    for at in range(start, stop):
        word |= np.uint64(text[at]) << np.uint64(8 * (at - start))
    return word


@njit(nogil=True, cache=True, inline="always")
def hex_of(word):  # type: ignore[no-untyped-def]  # compiled
    """Returns (the number that 8 hex digits write, True if they are hex digits); the first digit is the lowest byte.

    Each byte is compared by an addition that carries into its own high bit (Mycroft's method).
    """
    lower = word | _LOWER_CASE
    is_digit = (word + _FROM_0) & ~(word + _ABOVE_9)
    is_letter = (lower + _FROM_A) & ~(lower + _ABOVE_F)
    is_hex = ((is_digit | is_letter) & ~word & _HIGH_BITS) == _HIGH_BITS
    letters = (word >> _6) & _ONES
    nibbles = (word & _LOW_NIBBLES) + (letters << _3) + letters
    # the first digit, in the lowest byte, is the most significant: pair neighbours, then pairs of pairs
    pairs = ((nibbles << _4) | (nibbles >> _8)) & _EVEN_BYTES
    fours = ((pairs << _8) | (pairs >> _16)) & _EVEN_PAIRS
    return ((fours << _16) | (fours >> _32)) & _LOW_32, is_hex


@njit(nogil=True, cache=True, inline="always")
def number_of(word):  # type: ignore[no-untyped-def]  # compiled
    """Returns (the number written by 8 decimal digits, True if they are digits); the first is the lowest byte."""
    digits = word ^ _ZERO_DIGITS
    # bytes above 9: adding 118 carries, or they were set before
    others = ((digits + _TO_CARRY) | digits) & _HIGH_BITS
    pairs = (digits * np.uint64(10) + (digits >> _8)) & _EVEN_BYTES
    fours = (pairs * np.uint64(100) + (pairs >> _16)) & _EVEN_PAIRS
    return np.int64((fours & _LOW_32) * np.uint64(10000) + (fours >> _32)), others == _0


@njit(nogil=True, cache=True, inline="always")
def padded(word, length):  # type: ignore[no-untyped-def]  # compiled
    """The first ``length`` digits (1 to 8) of a word, padded with zeros on the left; anything for other lengths."""
    bits = np.uint64(-length << 3) & _63
    return (word << bits) | (_ZERO_DIGITS & ~(_ALL << bits))
