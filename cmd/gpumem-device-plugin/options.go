package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/coexist"
	"github.com/gpumem/gpumem/pkg/containers"
	"github.com/gpumem/gpumem/pkg/daemon"
	"github.com/gpumem/gpumem/pkg/enforcement"
	"github.com/gpumem/gpumem/pkg/nodepods"
	"github.com/gpumem/gpumem/pkg/nvml"
	"github.com/gpumem/gpumem/pkg/usage"
)

// What to do with pods that no scheduler of gpumem has placed.
const (
	unassignedPlace  = "place"
	unassignedRefuse = "refuse"
)

// What to do with pods that use more than they were granted.
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
	gpuSpeeds     string
	unitMiB       int64
	reserveMiB    int64
	nvmlLibrary   string
	driverRoot    string
	probeInterval time.Duration
	ignoreXIDs    string

	unassigned   string
	policy       string
	strategy     string
	frameworkEnv string

	enforcement  string
	mpsDir       string
	cgroupRoot   string
	hostRoot     string
	nriSocket    string
	onOveruse    string
	toleranceMiB int64

	kubeletDir  string
	probeListen string

	kube        daemon.Kube
	log         daemon.Log
	showVersion bool

	flags *pflag.FlagSet
}

func defaultOptions() options {
	var xids []string
	for _, xid := range nvml.ApplicationXIDs() {
		xids = append(xids, strconv.FormatUint(xid, 10))
	}
	return options{
		nodeName:      os.Getenv("NODE_NAME"),
		domain:        api.DefaultDomain,
		unitMiB:       1024,
		driverRoot:    "/",
		probeInterval: 30 * time.Second,
		ignoreXIDs:    strings.Join(xids, ","),
		unassigned:    unassignedPlace,
		policy:        "binpack",
		strategy:      string(containers.Envvar),
		frameworkEnv:  "jax,pytorch,paddle",
		enforcement:   string(enforcement.Auto),
		mpsDir:        "/run/gpumem/mps",
		cgroupRoot:    "/sys/fs/cgroup",
		hostRoot:      "/",
		nriSocket:     "/var/run/nri/nri.sock",
		onOveruse:     overuseWarn,
		toleranceMiB:  512,
		kubeletDir:    "/var/lib/kubelet",
		probeListen:   ":8012",
		kube:          daemon.Kube{QPS: 20, Burst: 40},
		log:           daemon.DefaultLog(),
	}
}

func (o *options) parse(args []string, stdout io.Writer) error {
	f := pflag.NewFlagSet("gpumem-device-plugin", pflag.ContinueOnError)
	o.addFlags(f)
	o.flags = f
	return daemon.Parse(f, `gpumem-device-plugin offers the GPU memory of its node to the kubelet.

Usage: gpumem-device-plugin [flags]
       gpumem-device-plugin mps [flags]   keep NVIDIA's MPS daemon running`, args, stdout)
}

func (o *options) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.nodeName, "node-name", o.nodeName, "`name` of the node; default: the environment variable NODE_NAME")
	f.StringVar(&o.domain, "resource-domain", o.domain, "`domain` of the extended resources and annotations")
	f.StringVar(&o.devices, "devices", o.devices, "`globs` of the UUIDs or indexes of the GPUs to offer, with commas between them and ! before those to leave to others; empty: all")
	f.BoolVar(&o.cores, "cores", o.cores, "offer the cores of the GPUs as a resource beside their memory, 100 of each GPU")
	f.Int64Var(&o.unitMiB, "unit-mib", o.unitMiB, "`MiB` of GPU memory that one unit of the resource stands for")
	f.Int64Var(&o.reserveMiB, "reserve-mib", o.reserveMiB, "`MiB` of each GPU that are kept from pods, beside what the driver keeps for itself")
	f.StringVar(&o.gpuSpeeds, "gpu-speeds", o.gpuSpeeds, "`file` with relative speeds of GPU models, for pods that prefer one: YAML, a glob of the model and a number (A100: 100) on each line; others keep theirs")
	f.StringVar(&o.nvmlLibrary, "nvml-library", o.nvmlLibrary, "`file` to load NVML from; empty: look for libnvidia-ml.so.1 under --driver-root")
	f.StringVar(&o.driverRoot, "driver-root", o.driverRoot, "`directory` under which the NVIDIA driver is installed, for example /run/nvidia/driver")
	f.DurationVar(&o.probeInterval, "probe-interval", o.probeInterval, "time between two looks at the health of the GPUs")
	f.StringVar(&o.ignoreXIDs, "ignore-xids", o.ignoreXIDs, "`numbers` of GPU errors that are a program's fault and leave the GPU healthy")
	f.StringVar(&o.unassigned, "unassigned", o.unassigned, "what to do with pods that gpumem's scheduler has not placed: place or refuse")
	f.StringVar(&o.policy, "policy", o.policy, "`policy` to place them by, if they name none: binpack or spread")
	f.StringVar(&o.strategy, "device-list-strategy", o.strategy, "how the container runtime is told of GPUs: envvar, volume-mounts, cdi-annotations or cdi-cri")
	f.StringVar(&o.frameworkEnv, "framework-env", o.frameworkEnv, "`frameworks` whose own environment variables are set to the container's share: jax, pytorch, paddle; or none")
	f.StringVar(&o.enforcement, "enforcement", o.enforcement, "`level` at which containers are held to their grants: kernel, mps, advisory, or auto for the strongest that the node can prove")
	f.StringVar(&o.mpsDir, "mps-dir", o.mpsDir, "`directory` of the MPS daemon, the same on the node, here and in containers")
	f.StringVar(&o.cgroupRoot, "cgroup-root", o.cgroupRoot, "`directory` where the node's control groups are mounted")
	f.StringVar(&o.hostRoot, "host-root", o.hostRoot, "`directory` below which the node's files are, to look for NVIDIA's container toolkit; --driver-root is searched as well")
	f.StringVar(&o.nriSocket, "nri-socket", o.nriSocket, "`socket` of the container runtime's NRI, by which it asks about each container that holds GPU memory; empty: it does not")
	f.StringVar(&o.onOveruse, "on-overuse", o.onOveruse, "what to do with a pod of which a container uses more than it was granted: warn, by an event, or evict as well")
	f.Int64Var(&o.toleranceMiB, "overuse-tolerance-mib", o.toleranceMiB, "`MiB` that a container may use beyond its grant before that, for CUDA's contexts")
	f.StringVar(&o.kubeletDir, "kubelet-dir", o.kubeletDir, "`directory` of the kubelet, with device-plugins and pod-resources in it")
	f.StringVar(&o.probeListen, "probe-listen", o.probeListen, "`address` of /healthz, /readyz, /metrics and /version")
	o.kube.AddFlags(f)
	o.log.AddFlags(f)
	f.BoolVar(&o.showVersion, "version", false, "print the version and end")
}

// validate reports all mistakes at once.
func (o *options) validate() error {
	var errs []error
	check := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	if o.nodeName == "" {
		check("node-name", errors.New("is not set, nor is NODE_NAME"))
	}
	_, err := api.NewNames(o.domain)
	check("resource-domain", err)
	_, err = coexist.ParseSelector(o.devices)
	check("devices", err)
	if o.unitMiB < 1 {
		check("unit-mib", fmt.Errorf("%d, want 1 or more", o.unitMiB))
	}
	if o.reserveMiB < 0 {
		check("reserve-mib", fmt.Errorf("%d, want 0 or more", o.reserveMiB))
	}
	_, err = nvml.ReadSpeeds(o.gpuSpeeds)
	check("gpu-speeds", err)
	if o.probeInterval < time.Second {
		check("probe-interval", fmt.Errorf("%s, want 1s or more", o.probeInterval))
	}
	_, err = parseXIDs(o.ignoreXIDs)
	check("ignore-xids", err)
	if o.unassigned != unassignedPlace && o.unassigned != unassignedRefuse {
		check("unassigned", fmt.Errorf("%q, want place or refuse", o.unassigned))
	}
	_, err = api.ParseFallback(o.policy)
	check("policy", err)
	_, err = containers.ParseStrategy(o.strategy)
	check("device-list-strategy", err)
	_, err = containers.ParseFrameworks(o.frameworkEnv)
	check("framework-env", err)
	_, err = enforcement.ParseMode(o.enforcement)
	check("enforcement", err)
	if !filepath.IsAbs(o.mpsDir) {
		check("mps-dir", fmt.Errorf("%q, want an absolute path: containers see it too", o.mpsDir))
	}
	if o.onOveruse != overuseWarn && o.onOveruse != overuseEvict {
		check("on-overuse", fmt.Errorf("%q, want warn or evict", o.onOveruse))
	}
	if o.toleranceMiB < 0 {
		check("overuse-tolerance-mib", fmt.Errorf("%d, want 0 or more", o.toleranceMiB))
	}
	if o.kubeletDir == "" {
		check("kubelet-dir", errors.New("is empty"))
	}
	_, _, err = net.SplitHostPort(o.probeListen)
	check("probe-listen", err)
	return errors.Join(append(errs, o.kube.Validate(), o.log.Validate())...)
}

// evictor returns who evicts pods that use too much; nil when nobody is to.
func (o *options) evictor(client kubernetes.Interface) usage.Evictor {
	if o.onOveruse != overuseEvict {
		return nil
	}
	return nodepods.NewEvictor(client)
}

func parseXIDs(list string) ([]uint64, error) {
	var out []uint64
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		xid, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q: want numbers with commas between them", list)
		}
		out = append(out, xid)
	}
	return out, nil
}
