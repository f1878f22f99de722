"""A CUDA program without a toolkit: the driver's library by ctypes. It prints one JSON object a line.

    cu.py info                       report GPUs, multiprocessors, total and free memory as the process sees them
    cu.py most STEP MAX              allocate STEP MiB at a time up to MAX MiB, and report how much CUDA granted
    cu.py hold MIB [MIB ...]         allocate these, report it, and use them once more when the input ends
    cu.py fill FRACTION              allocate that share of CUDA's total, as a framework does; then the same as hold
    cu.py spin SECONDS [BLOCKS]      launch a kernel repeatedly: launches, p50 and p99 in ms, and the second of an error
    cu.py fault                      write to an unmapped address in a kernel
    cu.py fork MIB                   allocate in a child that was forked before CUDA was initialised

All memory is from cuMemAlloc; none is managed. KIT_DEVICE selects the GPU among the visible ones. With KIT_DRY=1 and a
library without kernels, a launch sleeps instead.
"""
import ctypes as c
import json
import os
import sys
import time

MIB = 1 << 20
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry busy(.param .u64 out)
{
 .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<3>;
 ld.param.u64 %d1, [out];
 cvta.to.global.u64 %d2, %d1;
 mov.u32 %r1, 0;
 mov.u32 %r2, 1;
loop:
 mad.lo.s32 %r2, %r2, 1664525, 1013904223;
 add.s32 %r1, %r1, 1;
 setp.lt.s32 %p1, %r1, 200000;
 @%p1 bra loop;
 st.global.u32 [%d2], %r2;
 ret;
}
"""

class Failed(Exception):
    pass

class Cuda:
    def __init__(self):
        self.lib = c.CDLL(os.environ.get("KIT_CUDA", "") or "libcuda.so.1")
        began = time.monotonic()
        self.check("cuInit", c.c_uint(0))
        self.device = c.c_int()
        self.check("cuDeviceGet", c.byref(self.device), c.c_int(int(os.environ.get("KIT_DEVICE", "0"))))
        self.context = c.c_void_p()
        if hasattr(self.lib, "cuDevicePrimaryCtxRetain"):  # as frameworks do
            self.check("cuDevicePrimaryCtxRetain", c.byref(self.context), self.device)
            self.check("cuCtxSetCurrent", self.context)
        else:
            self.check("cuCtxCreate_v2", c.byref(self.context), c.c_uint(0), self.device)
        self.ready = time.monotonic() - began

    def name(self, rc):
        text = c.c_char_p()
        self.lib.cuGetErrorName(c.c_int(rc), c.byref(text))
        return text.value.decode() if text.value else str(rc)

    def rc(self, call, *args):
        f = getattr(self.lib, call)
        f.restype = c.c_int
        return f(*args)

    def check(self, call, *args):
        rc = self.rc(call, *args)
        if rc != 0:
            raise Failed("%s: %s" % (call, self.name(rc)))

    def allocate(self, size):
        address = c.c_ulonglong()
        rc = self.rc("cuMemAlloc_v2", c.byref(address), c.c_size_t(size))
        return rc, address

    def touch(self, address, size):
        self.check("cuMemsetD8_v2", address, c.c_ubyte(1), c.c_size_t(size))
        self.check("cuCtxSynchronize")

    def sees(self):
        free, total, count, sms, whole = c.c_size_t(), c.c_size_t(), c.c_int(), c.c_int(), c.c_size_t()
        self.check("cuMemGetInfo_v2", c.byref(free), c.byref(total))
        self.check("cuDeviceGetCount", c.byref(count))
        self.check("cuDeviceGetAttribute", c.byref(sms), c.c_int(16), self.device)
        self.check("cuDeviceTotalMem_v2", c.byref(whole), self.device)
        return {"gpus": count.value, "sms": sms.value, "totalMiB": total.value // MIB, "freeMiB": free.value // MIB, "deviceTotalMiB": whole.value // MIB, "start_s": round(self.ready, 3)}

    def nvml(self):
        """Returns the memory that NVML reports for this process, by its own process ID."""
        try:
            import nvml
            mine, all_ = nvml.NVML().used_by(os.getpid())
            return {"nvmlMineMiB": mine, "nvmlAllMiB": all_}
        except Exception as e:  # CUDA's result counts without NVML's
            return {"nvml": str(e)}

    def kernel(self, ptx=PTX, name=b"busy"):
        if os.environ.get("KIT_DRY") and not hasattr(self.lib, "cuModuleLoadData"):
            return None
        module, function = c.c_void_p(), c.c_void_p()
        self.check("cuModuleLoadData", c.byref(module), c.c_char_p(ptx))
        self.check("cuModuleGetFunction", c.byref(function), module, c.c_char_p(name))
        return function

    def launch(self, function, address, blocks):
        if function is None:
            time.sleep(0.002)
            return 0
        slot = c.c_ulonglong(address)
        parameters = (c.c_void_p * 1)(c.cast(c.byref(slot), c.c_void_p))
        rc = self.rc("cuLaunchKernel", function, c.c_uint(blocks), c.c_uint(1), c.c_uint(1), c.c_uint(128), c.c_uint(1), c.c_uint(1), c.c_uint(0), None, parameters, None)
        return rc or self.rc("cuCtxSynchronize")

def report(**fields):
    print(json.dumps(fields), flush=True)

def hold(cuda, sizes):
    began, kept = time.monotonic(), []
    for mib in sizes:
        rc, address = cuda.allocate(mib * MIB)
        if rc != 0:
            report(ok=False, error="cuMemAlloc: " + cuda.name(rc), askedMiB=mib, hasMiB=sum(m for m, _ in kept), **cuda.sees())
            break
        cuda.touch(address, mib * MIB)
        kept.append((mib, address))
    else:
        report(ok=True, hasMiB=sum(m for m, _ in kept), took_s=round(time.monotonic() - began, 3), **cuda.sees(), **cuda.nvml())
    sys.stdin.read()
    for mib, address in kept:
        cuda.touch(address, mib * MIB)
    report(ok=True, after="used again", hasMiB=sum(m for m, _ in kept))

def spin(cuda, seconds, blocks):
    function = cuda.kernel()
    rc, address = cuda.allocate(4096)
    if rc != 0:
        raise Failed("cuMemAlloc: " + cuda.name(rc))
    report(ready=True, pid=os.getpid())
    took, began, error = [], time.monotonic(), None
    while time.monotonic() < began + seconds:
        at = time.monotonic()
        rc = cuda.launch(function, address.value, blocks)
        if rc != 0:
            error = {"error": cuda.name(rc), "at_s": round(time.monotonic() - began, 3)}
            break
        took.append((time.monotonic() - at) * 1e3)
    took.sort()
    report(ok=error is None, launches=len(took), per_s=round(len(took) / seconds, 1), p50=round(took[len(took) // 2], 3) if took else None,
        p99=round(took[len(took) * 99 // 100], 3) if took else None, **(error or {}))

def main(what, args):
    if what == "fork" and os.fork() != 0:
        os.wait()
        return
    cuda = Cuda()
    if what == "info":
        report(ok=True, **cuda.sees(), **cuda.nvml())
    elif what == "fork":
        rc, _ = cuda.allocate(int(args[0]) * MIB)
        report(ok=rc == 0, error=cuda.name(rc), askedMiB=int(args[0]))
    elif what == "most":
        step, most, has = int(args[0]) * MIB, int(args[1]) * MIB, 0
        first, refused = cuda.sees(), None
        while has + step <= most:
            rc, address = cuda.allocate(step)
            if rc != 0:
                refused = cuda.name(rc)
                break
            cuda.touch(address, step)
            has += step
        report(ok=True, hasMiB=has // MIB, refused=refused, freeAfterMiB=cuda.sees()["freeMiB"], **first, **cuda.nvml())
    elif what == "hold":
        hold(cuda, [int(a) for a in args])
    elif what == "fill":
        hold(cuda, [int(float(args[0]) * cuda.sees()["totalMiB"])])
    elif what == "spin":
        spin(cuda, float(args[0]), int(args[1]) if len(args) > 1 else 8)
    elif what == "fault":
        function = cuda.kernel()
        rc = 999 if function is None else cuda.launch(function, 0, 1)
        report(ok=rc != 0, error=cuda.name(rc))
    else:
        raise Failed("unknown: " + what)

if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2:])
    except (Failed, OSError, AttributeError) as e:
        report(ok=False, error=str(e))
