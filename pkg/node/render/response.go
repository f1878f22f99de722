package render

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// Strategy is the way to pass the GPUs of a container to the container runtime.
type Strategy string

// The strategies, with the names that NVIDIA's plugin uses.
const (
	Envvar         Strategy = "envvar"          // NVIDIA_VISIBLE_DEVICES
	VolumeMounts   Strategy = "volume-mounts"   // mount paths, which a pod cannot set itself
	CDIAnnotations Strategy = "cdi-annotations" // for runtimes that read cdi.k8s.io/ annotations
	CDICRI         Strategy = "cdi-cri"         // the kubelet passes the names to the runtime
)

// ParseStrategy parses the name of a strategy.
func ParseStrategy(s string) (Strategy, error) {
	switch Strategy(s) {
	case Envvar, VolumeMounts, CDIAnnotations, CDICRI:
		return Strategy(s), nil
	}
	return "", fmt.Errorf("device list strategy %q: want envvar, volume-mounts, cdi-annotations or cdi-cri", s)
}

// Framework is a framework that reads its share of a GPU from its environment.
type Framework string

// knob returns a framework's variable, and its value for a share.
func (f Framework) knob(share string) (name, value string, ok bool) {
	switch f {
	case "jax":
		return "XLA_PYTHON_CLIENT_MEM_FRACTION", share, true
	case "pytorch":
		return "PYTORCH_ALLOC_CONF", "per_process_memory_fraction:" + share, true
	case "paddle":
		return "FLAGS_fraction_of_gpu_memory_to_use", share, true
	default:
		return "", "", false
	}
}

// ParseFrameworks parses a list of frameworks, or "none".
func ParseFrameworks(s string) ([]Framework, error) {
	if s == "none" {
		return nil, nil
	}
	var out []Framework
	var errs []error
	for name := range strings.SplitSeq(s, ",") {
		f := Framework(strings.TrimSpace(name))
		switch _, _, ok := f.knob(""); {
		case !ok:
			errs = append(errs, fmt.Errorf("framework %q: want some of jax, pytorch and paddle, or none", name))
		case !slices.Contains(out, f):
			out = append(out, f)
		}
	}
	return out, errors.Join(errs...)
}

const (
	visibleDevices = "NVIDIA_VISIBLE_DEVICES"
	corePercent    = "GPUMEM_CORE_PERCENT"
	gpuUUIDs       = "GPUMEM_GPU_UUID"
	limitMiB       = "GPUMEM_LIMIT_MIB"

	// mountsRoot is the directory in which NVIDIA's runtime searches for mounts that name devices.
	mountsRoot = "/var/run/nvidia-container-devices"

	cdiAnnotationKey = "cdi.k8s.io/gpumem"
)

// Config contains the settings of a container's environment and devices.
type Config struct {
	Strategy   Strategy
	CDIKind    string // kind of the GPUs for CDI strategies; empty: nvidia.com/gpu
	Frameworks []Framework
	MPSDir     string // directory of the MPS daemon's pipes, on the host and in containers
	ShareCores bool   // a share of a GPU includes that part of its cores
}

// Percent returns the percentage of its GPUs' cores that a memory grant includes: 100, or less for shares if
// Config.ShareCores is true.
func (cfg Config) Percent(g allocation.Grant) int {
	if !cfg.ShareCores || len(g.Devices) == 0 || !g.Devices[0].InShares() {
		return gpu.CoresPerDevice
	}
	return g.SlotsPerDevice * gpu.CoresPerDevice / gpu.SharesPerDevice
}

// LimitMiB returns the memory limit on each GPU of a grant. It is the same on all GPUs: for shares of GPUs of
// different sizes, it is the share's size on the smallest GPU.
func LimitMiB(g allocation.Grant, inv gpu.Inventory) (least int64) {
	for i, d := range g.Devices {
		if mib := d.MiB(gpu.Units(g.SlotsPerDevice), inv.UnitMiB); i == 0 || mib < least {
			least = mib
		}
	}
	return least
}

// DefaultConfig returns the settings that suit most nodes.
func DefaultConfig() Config { return Config{Strategy: Envvar, MPSDir: "/run/gpumem/mps"} }

// Response returns the answer to Allocate for a grant.
func (cfg Config) Response(r gpu.Resource, g allocation.Grant, inv gpu.Inventory) *pluginapi.ContainerAllocateResponse {
	if r == gpu.Cores {
		return coreResponse(g.SlotsPerDevice, inv)
	}
	return cfg.memoryResponse(g, inv)
}

func (cfg Config) memoryResponse(g allocation.Grant, inv gpu.Inventory) *pluginapi.ContainerAllocateResponse {
	out := &pluginapi.ContainerAllocateResponse{Envs: environment(g, inv, cfg.Frameworks)}
	enforce(out, g, inv, cfg.MPSDir)
	if cfg.ShareCores {
		maps.Copy(out.Envs, coreResponse(cfg.Percent(g), inv).GetEnvs())
	}
	uuids := g.UUIDs()
	switch cfg.Strategy {
	case VolumeMounts:
		out.Envs[visibleDevices] = mountsRoot
		for _, uuid := range uuids {
			out.Mounts = append(out.Mounts, &pluginapi.Mount{ContainerPath: mountsRoot + "/" + uuid, HostPath: "/dev/null"})
		}
	case CDIAnnotations, CDICRI:
		// An image with the value "all" must not also get all GPUs through this variable.
		out.Envs[visibleDevices] = "void"
		var names []string
		for _, uuid := range uuids {
			names = append(names, cmp.Or(cfg.CDIKind, "nvidia.com/gpu")+"="+uuid)
		}
		if cfg.Strategy == CDIAnnotations {
			out.Annotations = map[string]string{cdiAnnotationKey: strings.Join(names, ",")}
			break
		}
		for _, name := range names {
			out.CdiDevices = append(out.CdiDevices, &pluginapi.CDIDevice{Name: name})
		}
	default:
		out.Envs[visibleDevices] = strings.Join(uuids, ",")
	}
	return out
}

// GrantedEnvironment is the content of an environment that Response created.
type GrantedEnvironment struct {
	GPUs     []gpu.UUID
	LimitMiB int64
	Level    gpu.Enforcement
	MPS      bool
}

// ReadEnvironment parses an environment that Response created and no pod could change.
func ReadEnvironment(env map[string]string) (g GrantedEnvironment) {
	for uuid := range strings.SplitSeq(env[gpuUUIDs], ",") {
		g.GPUs = append(g.GPUs, gpu.UUID(uuid))
	}
	g.LimitMiB, _ = strconv.ParseInt(env[limitMiB], 10, 64)
	g.Level, g.MPS = levelIn(env), env[mpsPipeDirectory] != ""
	return g
}

// withEnvironment returns the configuration that created a container's environment: its strategy, and whether a
// share included cores. The settings of `cfg` may have changed since.
func (cfg Config) withEnvironment(environment map[string]string) Config {
	_, cores := environment[corePercent]
	cfg.ShareCores = cores
	switch environment[visibleDevices] {
	case mountsRoot:
		cfg.Strategy = VolumeMounts
	case "void":
		cfg.Strategy = CDICRI // both CDI strategies have this environment
	default:
		cfg.Strategy = Envvar
	}
	return cfg
}

// coreResponse returns the answer for a grant of cores. It contains only the percentage: the answer for memory
// contains the GPUs, and the kubelet merges the two in undefined order.
func coreResponse(each int, inv gpu.Inventory) *pluginapi.ContainerAllocateResponse {
	percent := strconv.Itoa(each)
	out := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{corePercent: percent}}
	if inv.MPS {
		out.Envs[mpsThreads] = percent
	}
	return out
}

// The fraction of a container (GPUMEM_FRACTION) is slightly less than its grant's part of the GPU, because CUDA's
// context counts as the container's memory. At levels mps and kernel, the context counts towards the limit. At level
// advisory, it comes on top of the grant. At level kernel, CUDA reports the grant as the GPU's total, so the fraction
// refers to the grant. The lower percentage at this level (percentOfLimit) allows for the difference between CUDA's
// and NVML's totals of a whole GPU. A framework that does not count its context gets the fraction minus a context, but
// at least a tenth of the grant: JAX does not start with less.
const (
	percentOfGrant = 95
	percentOfLimit = 92
	leastPercent   = 10
)

// environment returns the variables with the numbers of a grant. Lists are in the order of the GPUs' indexes.
func environment(g allocation.Grant, inv gpu.Inventory, frameworks []Framework) map[string]string {
	var indexes, sizes []string
	var largest, context int64
	for _, d := range g.Devices {
		context = max(context, contextMiB(d))
		indexes = append(indexes, strconv.Itoa(d.Index))
		sizes = append(sizes, strconv.FormatInt(d.MemoryMiB, 10))
		largest = max(largest, d.MemoryMiB)
	}
	limit := LimitMiB(g, inv)
	// One fraction applies to all GPUs, so it refers to the largest.
	part, whole := limit*percentOfGrant, largest*100
	if inv.Enforcement == gpu.EnforcementKernel && limit > 0 {
		part, whole = limit*percentOfLimit, limit*100
	}
	share, withoutContext := fraction(part, whole), fraction(max(part-context*100, limit*leastPercent), whole)
	env := map[string]string{
		"GPUMEM_GPU_INDEX": strings.Join(indexes, ","),
		gpuUUIDs:           strings.Join(g.UUIDs(), ","),
		"GPUMEM_GPU_MIB":   strings.Join(sizes, ","),
		limitMiB:           strconv.FormatInt(limit, 10),
		"GPUMEM_FRACTION":  share,
		enforcementLevel:   string(cmp.Or(inv.Enforcement, gpu.EnforcementAdvisory)),
	}
	if withoutContext == fraction(0, 1) {
		return env // frameworks interpret zero as no limit, or do not start
	}
	for _, f := range frameworks {
		if name, value, ok := f.knob(withoutContext); ok {
			env[name] = value
		}
	}
	return env
}

// fraction returns part/whole with four decimals, rounded down.
func fraction(part, whole int64) string {
	if whole <= 0 || part >= whole {
		return "1.0000"
	}
	return fmt.Sprintf("0.%04d", part*10000/whole)
}
