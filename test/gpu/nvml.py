"""NVML by ctypes: every call that gpumem makes, with its return code and its result.

No function here changes a setting of a GPU. A function that the library lacks is reported as missing and not called.
"""
import ctypes as c
import os
import time

RC = {0: "SUCCESS", 1: "UNINITIALIZED", 2: "INVALID_ARGUMENT", 3: "NOT_SUPPORTED", 4: "NO_PERMISSION", 6: "NOT_FOUND",
      7: "INSUFFICIENT_SIZE", 9: "DRIVER_NOT_LOADED", 10: "TIMEOUT", 12: "LIBRARY_NOT_FOUND", 13: "FUNCTION_NOT_FOUND",
      15: "GPU_IS_LOST", 16: "RESET_REQUIRED", 18: "LIB_RM_VERSION_MISMATCH", 25: "ARGUMENT_VERSION_MISMATCH", 999: "UNKNOWN"}
MISSING = "no such symbol"
NOT_AVAILABLE = 2**64 - 1

def structure(name, *fields):
    return type(name, (c.Structure,), {"_fields_": fields})

Memory2 = structure("Memory2", ("version", c.c_uint), ("total", c.c_ulonglong), ("reserved", c.c_ulonglong), ("free", c.c_ulonglong), ("used", c.c_ulonglong))
Memory = structure("Memory", ("total", c.c_ulonglong), ("free", c.c_ulonglong), ("used", c.c_ulonglong))
Process = structure("Process", ("pid", c.c_uint), ("used", c.c_ulonglong), ("gi", c.c_uint), ("ci", c.c_uint))
Sample = structure("Sample", ("pid", c.c_uint), ("at", c.c_ulonglong), ("sm", c.c_uint), ("mem", c.c_uint), ("enc", c.c_uint), ("dec", c.c_uint))
Rates = structure("Rates", ("gpu", c.c_uint), ("memory", c.c_uint))
Pci = structure("Pci", ("legacy", c.c_char * 16), ("domain", c.c_uint), ("bus", c.c_uint), ("device", c.c_uint), ("id", c.c_uint), ("sub", c.c_uint), ("bus_id", c.c_char * 32))
Event = structure("Event", ("device", c.c_void_p), ("type", c.c_ulonglong), ("data", c.c_ulonglong), ("gi", c.c_uint), ("ci", c.c_uint))
Limits = structure("Limits", ("folder", c.c_char_p), ("soft", c.c_ulonglong), ("hard", c.c_ulonglong), ("current", c.c_ulonglong))  # nvmlDeviceGetMemoryLimits_v1, CUDA 13.4

class NVML:
    def __init__(self, path=""):
        self.path = path or os.environ.get("KIT_NVML", "") or "libnvidia-ml.so.1"
        self.lib = c.CDLL(self.path)
        self.init = self.call("nvmlInit_v2")

    def has(self, name):
        return hasattr(self.lib, name)

    def call(self, name, *args):
        if not self.has(name):
            return MISSING
        f = getattr(self.lib, name)
        f.restype = c.c_int
        return f(*args)

    def gpu(self, index=0):
        h = c.c_void_p()
        rc = self.call("nvmlDeviceGetHandleByIndex_v2", c.c_uint(index), c.byref(h))
        return rc, h

    def processes(self, h, which):
        """Returns the symbol, its return code and the processes. which: Compute, Graphics or MPSCompute."""
        for version in ("_v3", "_v2", ""):
            name = "nvmlDeviceGet%sRunningProcesses%s" % (which, version)
            if not self.has(name):
                continue
            n = c.c_uint(256)
            infos = (Process * 256)()
            rc = self.call(name, h, c.byref(n), infos)
            found = []
            if rc == 0:
                for i in range(n.value):
                    used = infos[i].used
                    found.append({"pid": infos[i].pid, "mib": None if used == NOT_AVAILABLE else used >> 20})
            return name, rc, found
        return "nvmlDeviceGet%sRunningProcesses" % which, MISSING, []

    def samples(self, h, since=0):
        name = "nvmlDeviceGetProcessUtilization"
        n = c.c_uint(0)
        rc = self.call(name, h, None, c.byref(n), c.c_ulonglong(since))
        first = (rc, n.value)
        if rc == 7 and n.value or rc == 0 and n.value:
            n = c.c_uint(max(n.value, 64))
            found = (Sample * n.value)()
            rc = self.call(name, h, found, c.byref(n), c.c_ulonglong(since))
            if rc == 0:
                return rc, first, [{"pid": s.pid, "age_s": round(time.time() - s.at / 1e6, 2), "sm": s.sm, "mem": s.mem} for s in found[:n.value] if s.at]
        return rc, first, []

    def rates(self, h):
        r = Rates()
        rc = self.call("nvmlDeviceGetUtilizationRates", h, c.byref(r))
        return rc, r.gpu, r.memory

    def memory(self, h):
        m = Memory2()
        m.version = c.sizeof(Memory2) | 2 << 24
        rc = self.call("nvmlDeviceGetMemoryInfo_v2", h, c.byref(m))
        return rc, {"total": m.total >> 20, "reserved": m.reserved >> 20, "free": m.free >> 20, "used": m.used >> 20}

    def used_by(self, pid, index=0):
        """Returns the MiB of a process, None if no list has it, and the MiB used on the GPU."""
        rc, h = self.gpu(index)
        if rc != 0:
            return None, None
        most = None
        for which in ("Compute", "MPSCompute"):
            for p in self.processes(h, which)[2]:
                if p["pid"] == pid and p["mib"] is not None:
                    most = max(most or 0, p["mib"])
        return most, self.memory(h)[1]["used"]

def code(rc):
    return rc if isinstance(rc, str) else "%d %s" % (rc, RC.get(rc, "?"))

def table(path=""):
    """Yields (call, return code, result) of each call that gpumem makes, and of some that describe the machine."""
    n = NVML(path)
    yield "nvmlInit_v2", n.init, n.path
    text = c.create_string_buffer(128)

    def string(name, *args):
        rc = n.call(name, *args, text, c.c_uint(len(text)))
        return name, rc, text.value.decode(errors="replace") if rc == 0 else None

    def number(name, *args, kind=c.c_uint):
        v = kind()
        rc = n.call(name, *args, c.byref(v))
        return name, rc, v.value if rc == 0 else None

    yield string("nvmlSystemGetDriverVersion")
    yield string("nvmlSystemGetNVMLVersion")
    yield number("nvmlSystemGetCudaDriverVersion_v2", kind=c.c_int)
    yield number("nvmlDeviceGetCount_v2")
    rc, h = n.gpu()
    yield "nvmlDeviceGetHandleByIndex_v2", rc, None
    if rc != 0:
        return
    yield string("nvmlDeviceGetUUID", h)
    yield string("nvmlDeviceGetName", h)
    rc, m = n.memory(h)
    yield "nvmlDeviceGetMemoryInfo_v2", rc, m if rc == 0 else None
    m1 = Memory()
    rc = n.call("nvmlDeviceGetMemoryInfo", h, c.byref(m1))
    yield "nvmlDeviceGetMemoryInfo", rc, {"total": m1.total >> 20, "free": m1.free >> 20, "used": m1.used >> 20} if rc == 0 else None
    a, b = c.c_uint(), c.c_uint()
    rc = n.call("nvmlDeviceGetMigMode", h, c.byref(a), c.byref(b))
    yield "nvmlDeviceGetMigMode", rc, {"current": a.value, "pending": b.value} if rc == 0 else None
    yield number("nvmlDeviceGetMaxMigDeviceCount", h)
    mig = c.c_void_p()
    yield "nvmlDeviceGetMigDeviceHandleByIndex", n.call("nvmlDeviceGetMigDeviceHandleByIndex", h, c.c_uint(0), c.byref(mig)), None
    a, b = c.c_int(), c.c_int()
    rc = n.call("nvmlDeviceGetCudaComputeCapability", h, c.byref(a), c.byref(b))
    yield "nvmlDeviceGetCudaComputeCapability", rc, "%d.%d" % (a.value, b.value) if rc == 0 else None
    pci = Pci()
    rc = n.call("nvmlDeviceGetPciInfo_v3", h, c.byref(pci))
    yield "nvmlDeviceGetPciInfo_v3", rc, pci.bus_id.decode() if rc == 0 else None
    nodes = (c.c_ulong * 16)()
    rc = n.call("nvmlDeviceGetMemoryAffinity", h, c.c_uint(16), nodes, c.c_uint(0))
    yield "nvmlDeviceGetMemoryAffinity", rc, [hex(w) for w in nodes if w] if rc == 0 else None
    for name in ("nvmlDeviceGetNumaNodeId", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetComputeMode"):
        yield number(name, h)
    rc, g, mem = n.rates(h)
    yield "nvmlDeviceGetUtilizationRates", rc, {"gpu": g, "memory": mem} if rc == 0 else None
    for which in ("Compute", "Graphics", "MPSCompute"):
        name, rc, found = n.processes(h, which)
        yield name, rc, found
    rc, first, found = n.samples(h)
    yield "nvmlDeviceGetProcessUtilization", rc, {"size": [code(first[0]), first[1]], "samples": found}
    links = []
    for link in range(18):
        v = c.c_uint()
        rc = n.call("nvmlDeviceGetNvLinkState", h, c.c_uint(link), c.byref(v))
        kind, remote = c.c_uint(), Pci()
        rk = n.call("nvmlDeviceGetNvLinkRemoteDeviceType", h, c.c_uint(link), c.byref(kind)) if rc == 0 and v.value else None
        rr = n.call("nvmlDeviceGetNvLinkRemotePciInfo_v2", h, c.c_uint(link), c.byref(remote)) if rc == 0 and v.value else None
        links.append([rc, v.value, rk, kind.value, rr, remote.bus_id.decode(errors="replace")])
    yield "nvmlDeviceGetNvLinkState and of the remote end", links[0][0], links
    types = c.c_ulonglong()
    rc = n.call("nvmlDeviceGetSupportedEventTypes", h, c.byref(types))
    yield "nvmlDeviceGetSupportedEventTypes", rc, hex(types.value) if rc == 0 else None
    events = c.c_void_p()
    rc = n.call("nvmlEventSetCreate", c.byref(events))
    yield "nvmlEventSetCreate", rc, None
    if rc == 0:
        yield "nvmlDeviceRegisterEvents", n.call("nvmlDeviceRegisterEvents", h, c.c_ulonglong(types.value & 0xA), events), None
        e = Event()
        yield "nvmlEventSetWait_v2 (200 ms; TIMEOUT is expected)", n.call("nvmlEventSetWait_v2", events, c.byref(e), c.c_uint(200)), None
        yield "nvmlEventSetFree", n.call("nvmlEventSetFree", events), None
    limits = Limits(b"/sys/fs/cgroup", 0, 0, 0)
    yield "nvmlDeviceGetMemoryLimits_v1 (615 and newer)", n.call("nvmlDeviceGetMemoryLimits_v1", h, c.byref(limits)), [limits.soft, limits.hard, limits.current]
    yield "nvmlDeviceSetMemoryLimits_v1 (not called)", 0 if n.has("nvmlDeviceSetMemoryLimits_v1") else MISSING, None
    # Settings of the machine, which the kit must not change.
    yield number("nvmlDeviceGetPersistenceMode", h)
    yield number("nvmlDeviceGetVirtualizationMode", h)
    for clock in (0, 1, 2):
        yield number("nvmlDeviceGetApplicationsClock", h, c.c_uint(clock))
    yield number("nvmlDeviceGetPowerManagementLimit", h)
    yield "nvmlShutdown", n.call("nvmlShutdown"), None

def set_limit(path, folder, mib):
    """Limits a control group on the first GPU (None removes the limit). This changes no setting of the GPU."""
    n = NVML(path)
    _, h = n.gpu()
    limits = Limits(folder.encode(), 0, NOT_AVAILABLE if mib is None else mib << 20, 0)
    return code(n.call("nvmlDeviceSetMemoryLimits_v1", h, c.byref(limits)))

def machine(path=""):
    """Returns the driver's version, and UUID, model and memory of each GPU."""
    n, text, gpus, count = NVML(path), c.create_string_buffer(128), [], c.c_uint()
    n.call("nvmlSystemGetDriverVersion", text, c.c_uint(128))
    driver = text.value.decode()
    n.call("nvmlDeviceGetCount_v2", c.byref(count))
    for i in range(count.value):
        _, h = n.gpu(i)
        n.call("nvmlDeviceGetUUID", h, text, c.c_uint(128))
        uuid = text.value.decode()
        n.call("nvmlDeviceGetName", h, text, c.c_uint(128))
        gpus.append((uuid, text.value.decode(), n.memory(h)[1]))
    return driver, gpus

def settings(path="", index=0):
    """Returns the settings of a GPU that the kit must not change."""
    n = NVML(path)
    rc, h = n.gpu(index)
    out = {"handle": code(rc)}
    for name, *clock in (("nvmlDeviceGetComputeMode",), ("nvmlDeviceGetPersistenceMode",), ("nvmlDeviceGetPowerManagementLimit",), ("nvmlDeviceGetApplicationsClock", 1), ("nvmlDeviceGetApplicationsClock", 2)):
        v = c.c_uint()
        rc = n.call(name, h, *map(c.c_uint, clock), c.byref(v))
        out[" ".join([name[13:]] + [{1: "SM", 2: "memory"}[which] for which in clock])] = v.value if rc == 0 else code(rc)
    a, b = c.c_uint(), c.c_uint()
    rc = n.call("nvmlDeviceGetMigMode", h, c.byref(a), c.byref(b))
    out["MigMode"] = [a.value, b.value] if rc == 0 else code(rc)
    return out
