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

func defaultOptions() options {
	return options{
		nodeName:      os.Getenv("NODE_NAME"),
		domain:        api.DefaultDomain,
		unitMiB:       1024,
		driverRoot:    "/",
		probeInterval: 30 * time.Second,
		unassigned:    unassignedPlace,
		policy:        string(placement.Binpack),
		strategy:      string(render.Envvar),
		frameworkEnv:  "jax,pytorch,paddle",
		enforcement:   string(enforcement.Auto),
		mpsDir:        "/run/gpumem/mps",
		cgroupRoot:    "/sys/fs/cgroup",
		nriSocket:     "/var/run/nri/nri.sock",
		onOveruse:     overuseWarn,
		toleranceMiB:  512,
		kubeletDir:    "/var/lib/kubelet",
		probeListen:   ":8012",
		cdiDir:        "/var/run/cdi",
		cdiNodeRoot:   "/",
		Options:       daemon.Options{Kube: daemon.Kube{QPS: 20, Burst: 40}},
	}
}

func (o *options) parse(args []string, stdout io.Writer) error {
	f := pflag.NewFlagSet("gpumem-device-plugin", pflag.ContinueOnError)
	o.addFlags(f)
	return o.Parse(f, version, `gpumem-device-plugin offers the GPU memory of its node to the kubelet.

Usage: gpumem-device-plugin [flags]
       gpumem-device-plugin mps [flags]   keep NVIDIA's MPS daemon running`, args, stdout)
}

func (o *options) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.nodeName, "node-name", o.nodeName, "`name` of the node; default: the environment variable NODE_NAME")
	f.StringVar(&o.domain, "resource-domain", o.domain, "`domain` of the extended resources and annotations")
	f.BoolVar(&o.labelPods, "label-pods", o.labelPods, "write the labels of gpumem-scheduler's --label-pods where a pod got other GPUs than it was bound to")
	f.StringVar(&o.devices, "devices", o.devices, "`globs` of the UUIDs or indexes of the GPUs to offer, with commas between them and ! before those to leave to others; empty: all")
	f.BoolVar(&o.cores, "cores", o.cores, "offer the cores of the GPUs as a resource as well as their memory, 100 of each GPU")
	f.BoolVar(&o.mig, "mig", o.mig, "offer the MIG instances of GPUs in MIG mode, each as a GPU; without it such GPUs are left to others")
	f.Int64Var(&o.unitMiB, "unit-mib", o.unitMiB, "`MiB` of GPU memory that one unit of the resource stands for")
	f.Int64Var(&o.reserveMiB, "reserve-mib", o.reserveMiB, "`MiB` of each GPU to keep from pods, in addition to what the driver reserves")
	f.StringVar(&o.gpuSpeeds, "gpu-speeds", o.gpuSpeeds, "`file` with relative speeds of GPU models, for pods that prefer one: YAML, a glob of the model and a number (A100: 100) on each line; others keep theirs")
	f.StringVar(&o.nvmlLibrary, "nvml-library", o.nvmlLibrary, "`file` to load NVML from; empty: look for libnvidia-ml.so.1 under --driver-root")
	f.StringVar(&o.driverRoot, "driver-root", o.driverRoot, "`directory` under which the NVIDIA driver is installed, for example /run/nvidia/driver")
	f.DurationVar(&o.probeInterval, "probe-interval", o.probeInterval, "`interval` between two health checks of the GPUs")
	f.StringVar(&o.ignoreXIDs, "ignore-xids", o.ignoreXIDs, "`numbers` of further XID errors that leave a GPU healthy, in addition to errors after which NVIDIA recommends only a restart of the program, or no action")
	f.StringVar(&o.unassigned, "unassigned", o.unassigned, "`action` for pods that gpumem's scheduler has not placed: place or refuse")
	f.StringVar(&o.policy, "policy", o.policy, "`policy` to place them by, if they name none: "+placement.JoinPolicies(placement.ClusterPolicies()))
	f.StringVar(&o.strategy, "device-list-strategy", o.strategy, "how to name GPUs to the container runtime: envvar, volume-mounts, cdi-annotations or cdi-cri")
	f.StringVar(&o.frameworkEnv, "framework-env", o.frameworkEnv, "`frameworks` whose own environment variables are set to the container's share: jax, pytorch, paddle; or none")
	f.StringVar(&o.enforcement, "enforcement", o.enforcement, "`level` at which containers are limited to their grants: kernel, mps, advisory, or auto for the strongest that the node can prove")
	f.StringVar(&o.mpsDir, "mps-dir", o.mpsDir, "`directory` of the MPS daemon, the same on the node, here and in containers")
	f.StringVar(&o.cgroupRoot, "cgroup-root", o.cgroupRoot, "`directory` where the node's control groups are mounted")
	f.StringVar(&o.nriSocket, "nri-socket", o.nriSocket, "`socket` of the container runtime's NRI, which calls the plugin for each container with GPU memory; empty: NRI is not used")
	f.StringVar(&o.onOveruse, "on-overuse", o.onOveruse, "`action` when a container uses more GPU memory than its grant: warn (record an event) or evict (record an event, then evict the pod)")
	f.Int64Var(&o.toleranceMiB, "overuse-tolerance-mib", o.toleranceMiB, "`MiB` that a container may use beyond its grant before that, for CUDA's contexts")
	f.StringVar(&o.kubeletDir, "kubelet-dir", o.kubeletDir, "`directory` of the kubelet, with device-plugins and pod-resources in it")
	f.StringVar(&o.probeListen, "probe-listen", o.probeListen, "`address` of /healthz, /readyz, /metrics and /version")
	f.BoolVar(&o.claims, "claims", o.claims, "on a node with the label DOMAIN/api=claims, hand out GPUs by ResourceClaims instead of the extended resource")
	f.BoolVar(&o.claimsInShares, "claims-in-shares", o.claimsInShares, "offer the GPUs of such nodes in shares, 10 to each, instead of memory")
	f.BoolVar(&o.shares, "shares", o.shares, "on a node with the label DOMAIN/api=shares, offer GPUs in shares, 10 to each, instead of units of memory")
	f.StringVar(&o.kubeletRootDir, "kubelet-root-dir", o.kubeletRootDir, "`directory` of the kubelet, with the same path on the node and here, for --claims; empty: the value of --kubelet-dir")
	f.StringVar(&o.cdiDir, "cdi-dir", o.cdiDir, "`directory` where the container runtime looks for CDI files, for --claims and --cdi-hook")
	f.StringVar(&o.cdiHook, "cdi-hook", o.cdiHook, "`file` of NVIDIA's nvidia-cdi-hook on the node: describe the GPUs to the container runtime in a CDI file; empty: others do, as nvidia.com/gpu")
	f.StringVar(&o.cdiDriverRoot, "cdi-driver-root", o.cdiDriverRoot, "`directory` where this process sees the node's driver and device files, for --cdi-hook; empty: the value of --driver-root")
	f.StringVar(&o.cdiNodeRoot, "cdi-driver-root-on-node", o.cdiNodeRoot, "the same `directory` as the node has it")
}
