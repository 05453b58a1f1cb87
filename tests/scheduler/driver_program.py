"""A CUDA program that calls the driver by ctypes: endless launches of one kernel. It knows nothing of a scheduler.

python driver_program.py COUNTER   adds its launches to the 8 bytes of COUNTER.

nvshare's library replaces what dlsym finds of libcuda: preloaded, it takes the lock before each launch of this program.
"""

import ctypes
import mmap
import struct
import sys
from typing import Final

# Each thread multiplies and adds ROUNDS times; the grid fills the GPU for about a millisecond.
KERNEL: Final = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry burn(.param .u64 out, .param .u32 rounds)
{
    .reg .pred %p;
    .reg .f32 %f<4>;
    .reg .u32 %r<4>;
    .reg .u64 %d<4>;
    ld.param.u64 %d0, [out];
    ld.param.u32 %r0, [rounds];
    mov.f32 %f0, 0f3F800000;
    mov.f32 %f1, 0f3F7FFFFF;
LOOP:
    fma.rn.f32 %f0, %f0, %f1, %f1;
    fma.rn.f32 %f0, %f0, %f1, %f1;
    fma.rn.f32 %f0, %f0, %f1, %f1;
    fma.rn.f32 %f0, %f0, %f1, %f1;
    sub.u32 %r0, %r0, 1;
    setp.ne.u32 %p, %r0, 0;
    @%p bra LOOP;
    cvta.to.global.u64 %d1, %d0;
    st.global.f32 [%d1], %f0;
    ret;
}
\0"""
BLOCKS, THREADS, ROUNDS, LAUNCHES = 132 * 8, 256, 20_000, 5


def checked(status: int, what: str) -> None:
    if status:
        sys.exit(f"{what} failed: CUDA error {status}")


def main() -> None:
    with open(sys.argv[1], "r+b") as file:
        counter = mmap.mmap(file.fileno(), 8)
    driver = ctypes.CDLL("libcuda.so.1")
    checked(driver.cuInit(0), "cuInit")
    device, context, module, kernel = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    checked(driver.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    checked(driver.cuCtxCreate_v2(ctypes.byref(context), 0, device), "cuCtxCreate")
    checked(driver.cuModuleLoadData(ctypes.byref(module), KERNEL), "cuModuleLoadData")
    checked(driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"burn"), "cuModuleGetFunction")
    out = ctypes.c_uint64()
    checked(driver.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(1 << 20)), "cuMemAlloc")
    rounds = ctypes.c_uint32(ROUNDS)
    arguments = (ctypes.c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(rounds))
    launches = 0
    while True:
        for _ in range(LAUNCHES):
            size = (BLOCKS, 1, 1, THREADS, 1, 1)
            checked(driver.cuLaunchKernel(kernel, *size, 0, None, arguments, None), "cuLaunchKernel")
        checked(driver.cuCtxSynchronize(), "cuCtxSynchronize")
        launches += LAUNCHES
        struct.pack_into("=Q", counter, 0, launches)


if __name__ == "__main__":
    main()
