"""Programs with frameworks, as people run them in pods. They print one JSON object a line.

    worker.py torch-grant CAP       allocate 64 MiB at a time until PyTorch refuses, up to CAP MiB
    worker.py jax-grant CAP         the same with JAX
    worker.py serve                 serve a small transformer in bf16. Each line of the input, "KIND AT SECONDS", starts
                                    requests of a kind at that time (CLOCK_MONOTONIC)

Kinds of requests: decode (16 tokens of one sequence, launched one by one), graph (64 tokens by a CUDA graph, as servers
launch them), full (a batch that fills the GPU). With KIT_DRY=1 serve needs no framework, and a request sleeps 2 ms.
"""
import contextlib
import json
import os
import sys
import time

MIB = 1 << 20
DRY = bool(os.environ.get("KIT_DRY"))

def report(**fields):
    print(json.dumps(fields), flush=True)

def nvml_memory():
    try:
        import nvml
        mine, all_ = nvml.NVML().used_by(os.getpid())
        return {"nvmlMineMiB": mine, "nvmlAllMiB": all_}
    except Exception as e:
        return {"nvml": str(e)[:200]}

def torch_grant(cap):
    began = time.monotonic()
    import torch
    imported = time.monotonic() - began
    kept, error = [], None
    before = torch.cuda.mem_get_info()
    try:
        while len(kept) * 64 < cap:
            kept.append(torch.ones(64 * MIB, dtype=torch.uint8, device="cuda"))
        torch.cuda.synchronize()
    except Exception as e:
        error = "%s: %s" % (type(e).__name__, str(e)[:300])
    x = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16) if error is None else None
    y = (x @ x).sum().item() if x is not None else None  # cuBLAS allocates its workspace
    fraction = getattr(torch.cuda, "get_per_process_memory_fraction", getattr(torch.cuda.memory, "get_per_process_memory_fraction", lambda: None))()
    report(ok=True, framework="torch " + torch.__version__, import_s=round(imported, 1), gotMiB=len(kept) * 64, reservedMiB=torch.cuda.memory_reserved() // MIB, error=error, product=y,
        torchFraction=fraction, totalMiB=before[1] // MIB, propertiesTotalMiB=torch.cuda.get_device_properties(0).total_memory // MIB, sms=torch.cuda.get_device_properties(0).multi_processor_count,
        **nvml_memory())

def jax_grant(cap):
    began = time.monotonic()
    import jax
    import jax.numpy as jnp
    imported = time.monotonic() - began
    device = jax.devices()[0]
    started = time.monotonic() - began
    kept, error = [], None
    try:
        jnp.zeros(8).block_until_ready()
        after = nvml_memory()
        while len(kept) * 64 < cap:
            kept.append(jax.device_put(jnp.ones(64 * MIB, dtype=jnp.uint8)).block_until_ready())
    except Exception as e:
        error = "%s: %s" % (type(e).__name__, str(e)[:300])
        after = nvml_memory()
    stats = device.memory_stats() or {}
    report(ok=True, framework="jax " + jax.__version__, device=str(device), import_s=round(imported, 1), device_s=round(started, 1), gotMiB=len(kept) * 64, limitMiB=stats.get("bytes_limit", 0) // MIB,
        poolMiB=stats.get("pool_bytes", 0) // MIB, error=error, atStart=after, **nvml_memory())

class Model:
    """A transformer of 12 layers and width 1,024 with 0.15 billion random weights in bf16."""
    layers, width, heads, context = 12, 1024, 16, 512

    def __init__(self):
        import torch
        self.torch, self.device = torch, "cuda" if torch.cuda.is_available() else "cpu"
        if self.device == "cpu":  # a small model that tests the code
            self.layers, self.width, self.heads, self.context = 2, 64, 4, 16
        torch.manual_seed(1)
        w, make = self.width, lambda *s: torch.randn(*s, device=self.device, dtype=torch.bfloat16) * 0.02
        self.weights = [(make(w, 3 * w), make(w, w), make(w, 4 * w), make(4 * w, w)) for _ in range(self.layers)]
        self.cache = [(make(1, self.heads, self.context, w // self.heads), make(1, self.heads, self.context, w // self.heads)) for _ in range(self.layers)]
        self.token = make(1, 1, w)
        self.batch = make(64 if self.device == "cuda" else 2, self.context, w)
        self.graph = None

    def forward(self, x, cached):
        torch, f = self.torch, self.torch.nn.functional
        b, t, w = x.shape
        for i, (qkv, out, up, down) in enumerate(self.weights):
            q, k, v = (f.layer_norm(x, (w,)) @ qkv).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
            if cached:
                k, v = torch.cat((self.cache[i][0][:, :, 1:], k), 2), torch.cat((self.cache[i][1][:, :, 1:], v), 2)
            a = f.scaled_dot_product_attention(q, k, v)
            x = x + a.transpose(1, 2).reshape(b, t, w) @ out
            x = x + f.gelu(f.layer_norm(x, (w,)) @ up) @ down
        return x

    def sync(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def capture(self):
        torch = self.torch
        if self.device != "cuda":
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.forward(self.token, True)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.forward(self.token, True)

    def request(self, kind):
        if kind == "decode":
            for _ in range(16):
                self.forward(self.token, True)
        elif kind == "graph":
            for _ in range(64):
                self.graph.replay() if self.graph else self.forward(self.token, True)
        else:
            self.forward(self.batch, False)
        self.sync()

class Dry:
    def __init__(self):
        import cu
        self.cuda = cu.Cuda()
        self.memory = self.cuda.allocate(300 * MIB)
        self.capture = lambda: None
        self.request = lambda kind: time.sleep(0.002)

def serve():
    began = time.monotonic()
    model = Dry() if DRY else Model()
    with contextlib.nullcontext() if DRY else model.torch.inference_mode():
        run(model, began)

def run(model, began):
    for _ in range(3):
        model.request("decode")
    model.request("full")
    problem = None
    try:
        model.capture()
        model.request("graph")
    except Exception as e:
        problem = str(e)[:200]
    report(ready=True, pid=os.getpid(), start_s=round(time.monotonic() - began, 1), graph=problem, **nvml_memory())
    for line in sys.stdin:
        kind, at, seconds = line.split()
        at, seconds = float(at), float(seconds)
        took, error = [], None
        time.sleep(max(0, at - time.monotonic()))
        while error is None and time.monotonic() < at + seconds:
            start = time.monotonic()
            try:
                model.request(kind)
            except Exception as e:
                error = "%s: %s" % (type(e).__name__, str(e)[:200])
                break
            took.append((time.monotonic() - start) * 1e3)
        ended = time.monotonic() - at
        took.sort()
        n = len(took)
        report(kind=kind, requests=n, per_s=round(n / ended, 2) if ended > 0 else None, p50=round(took[n // 2], 2) if n else None, p99=round(took[min(n - 1, n * 99 // 100)], 2) if n else None,
            late_s=round(max(0, -ended), 3), error=error)

if __name__ == "__main__":
    what = sys.argv[1]
    try:
        if what == "serve":
            serve()
        elif what == "torch-grant":
            torch_grant(int(sys.argv[2]))
        else:
            jax_grant(int(sys.argv[2]))
    except Exception as e:
        report(ok=False, error="%s: %s" % (type(e).__name__, str(e)[:400]))
        sys.exit(1)
