package main

import (
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/enforcement"
	"github.com/gpumem/gpumem/pkg/node/render"
	"github.com/gpumem/gpumem/pkg/process/daemon"
)

// Values of --unassigned, for pods that no scheduler of gpumem has placed.
const (
	unassignedPlace  = "place"
	unassignedRefuse = "refuse"
)

// Values of --on-overuse, for pods that use more than their grants.
const (
	overuseWarn  = "warn"
	overuseEvict = "evict"
)

const defaultKubeletDir = "/var/lib/kubelet"

// options are the flags of the command.
type options struct {
	nodeName string
	domain   string

	devices       string
	cores         bool
	mig           bool
	gpuSpeeds     string
	unitMiB       int64
	reserveMiB    int64
	nvmlLibrary   string
	driverRoot    string
	probeInterval time.Duration
	ignoreXIDs    string

	unassigned   string
	policy       string
	labelPods    bool
	strategy     string
	frameworkEnv string

	enforcement  string
	mpsDir       string
	cgroupRoot   string
	nriSocket    string
	onOveruse    string
	toleranceMiB int64

	kubeletDir  string
	probeListen string

	claims, claimsInShares bool
	shares                 bool
	kubeletRootDir         string

	cdiDir, cdiHook            string
	cdiDriverRoot, cdiNodeRoot string

	daemon.Options
}

func (o *options) parse(args []string, stdout io.Writer) error {
	f := pflag.NewFlagSet("gpumem-device-plugin", pflag.ContinueOnError)
	f.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"), "`name` of the node; default: the environment variable NODE_NAME")
	f.StringVar(&o.domain, "resource-domain", api.DefaultDomain, "`domain` of the extended resources and annotations")
	f.BoolVar(&o.labelPods, "label-pods", false, "write the labels of gpumem-scheduler's --label-pods where a pod got other GPUs than it was bound to")
	f.StringVar(&o.devices, "devices", "", "`globs` of the UUIDs or indexes of the GPUs to offer, with commas between them and ! before those to leave to others; empty: all")
	f.BoolVar(&o.cores, "cores", false, "offer the cores of the GPUs as a resource as well as their memory, 100 of each GPU")
	f.BoolVar(&o.mig, "mig", false, "offer the MIG instances of GPUs in MIG mode, each as a GPU; without it such GPUs are left to others")
	f.Int64Var(&o.unitMiB, "unit-mib", 1024, "`MiB` of GPU memory that one unit of the resource stands for")
	f.Int64Var(&o.reserveMiB, "reserve-mib", 0, "`MiB` of each GPU to keep from pods, in addition to what the driver reserves")
	f.StringVar(&o.gpuSpeeds, "gpu-speeds", "", "`file` with relative speeds of GPU models, for pods that prefer one: YAML, a glob of the model and a number (A100: 100) on each line; others keep theirs")
	f.StringVar(&o.nvmlLibrary, "nvml-library", "", "`file` to load NVML from; empty: look for libnvidia-ml.so.1 under --driver-root")
	f.StringVar(&o.driverRoot, "driver-root", "/", "`directory` under which the NVIDIA driver is installed, for example /run/nvidia/driver")
	f.DurationVar(&o.probeInterval, "probe-interval", 30*time.Second, "`interval` between two health checks of the GPUs")
	f.StringVar(&o.ignoreXIDs, "ignore-xids", "", "`numbers` of further XID errors that leave a GPU healthy, in addition to errors after which NVIDIA recommends only a restart of the program, or no action")
	f.StringVar(&o.unassigned, "unassigned", unassignedPlace, "`action` for pods that gpumem's scheduler has not placed: place or refuse")
	f.StringVar(&o.policy, "policy", string(placement.Binpack), "`policy` to place them by, if they name none: "+placement.JoinPolicies(placement.ClusterPolicies()))
	f.StringVar(&o.strategy, "device-list-strategy", string(render.Envvar), "how to name GPUs to the container runtime: envvar, volume-mounts, cdi-annotations or cdi-cri")
	f.StringVar(&o.frameworkEnv, "framework-env", "jax,pytorch,paddle", "`frameworks` whose own environment variables are set to the container's share: jax, pytorch, paddle; or none")
	f.StringVar(&o.enforcement, "enforcement", string(enforcement.Auto), "`level` at which containers are limited to their grants: kernel, mps, advisory, or auto for the strongest that the node can prove")
	f.StringVar(&o.mpsDir, "mps-dir", "/run/gpumem/mps", "`directory` of the MPS daemon, the same on the node, here and in containers")
	f.StringVar(&o.cgroupRoot, "cgroup-root", "/sys/fs/cgroup", "`directory` where the node's control groups are mounted")
	f.StringVar(&o.nriSocket, "nri-socket", "/var/run/nri/nri.sock", "`socket` of the container runtime's NRI, which calls the plugin for each container with GPU memory; empty: NRI is not used")
	f.StringVar(&o.onOveruse, "on-overuse", overuseWarn, "`action` when a container uses more GPU memory than its grant: warn (record an event) or evict (record an event, then evict the pod)")
	f.Int64Var(&o.toleranceMiB, "overuse-tolerance-mib", 512, "`MiB` that a container may use beyond its grant before that, for CUDA's contexts")
	f.StringVar(&o.kubeletDir, "kubelet-dir", defaultKubeletDir, "`directory` of the kubelet, with device-plugins and pod-resources in it")
	f.StringVar(&o.probeListen, "probe-listen", ":8012", "`address` of /healthz, /readyz, /metrics and /version")
	f.BoolVar(&o.claims, "claims", false, "on a node with the label DOMAIN/api=claims, hand out GPUs by ResourceClaims instead of the extended resource")
	f.BoolVar(&o.claimsInShares, "claims-in-shares", false, "offer the GPUs of such nodes in shares, 10 to each, instead of memory")
	f.BoolVar(&o.shares, "shares", false, "on a node with the label DOMAIN/api=shares, offer GPUs in shares, 10 to each, instead of units of memory")
	f.StringVar(&o.kubeletRootDir, "kubelet-root-dir", "", "`directory` of the kubelet, with the same path on the node and here, for --claims; empty: the value of --kubelet-dir")
	f.StringVar(&o.cdiDir, "cdi-dir", "/var/run/cdi", "`directory` where the container runtime looks for CDI files, for --claims and --cdi-hook")
	f.StringVar(&o.cdiHook, "cdi-hook", "", "`file` of NVIDIA's nvidia-cdi-hook on the node: describe the GPUs to the container runtime in a CDI file; empty: others do, as nvidia.com/gpu")
	f.StringVar(&o.cdiDriverRoot, "cdi-driver-root", "", "`directory` where this process sees the node's driver and device files, for --cdi-hook; empty: the value of --driver-root")
	f.StringVar(&o.cdiNodeRoot, "cdi-driver-root-on-node", "/", "the same `directory` as the node has it")
	o.Kube = daemon.Kube{QPS: 20, Burst: 40}
	return o.Parse(f, version, `gpumem-device-plugin offers the GPU memory of its node to the kubelet.

Usage: gpumem-device-plugin [flags]
       gpumem-device-plugin mps [flags]   keep NVIDIA's MPS daemon running`, args, stdout)
}
