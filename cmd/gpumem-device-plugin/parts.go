package main

import (
	"context"
	"net/http"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/cdi"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/coexist"
	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	"github.com/gpumem/gpumem/pkg/node/enforcement"
	"github.com/gpumem/gpumem/pkg/node/inventory"
	"github.com/gpumem/gpumem/pkg/node/mps"
	"github.com/gpumem/gpumem/pkg/node/nodepods"
	"github.com/gpumem/gpumem/pkg/node/nodestate"
	"github.com/gpumem/gpumem/pkg/node/nri"
	"github.com/gpumem/gpumem/pkg/node/nvml"
	"github.com/gpumem/gpumem/pkg/node/usage"
	"github.com/gpumem/gpumem/pkg/report/metrics"
)

// How NVML is probed, where no flag says it.
const (
	probeRetry    = 10 * time.Second // while there is no driver, or no GPU
	probeTimeout  = 5 * time.Second
	probeRecovery = 3
)

// levelInterval is the time between two looks at who enforces limits.
const levelInterval = 2 * time.Second

// usersInterval is the time between two looks at who else uses GPUs.
const usersInterval = 5 * time.Second

// parts are what the process is made of.
type parts struct {
	prober *nvml.Prober
	ours   *coexist.Node // the prober's without those of others
	level  *enforcement.Node
	pods   *nodepods.Pods
	node   *nodepods.Node
	plugin deviceplugin.Plugin
	usage  *usage.Watch
	cdi    *cdi.Writer // nil where others describe the GPUs to the runtime
	nri    *nri.Plugin // nil where the runtime is not to call us
	runner *deviceplugin.Runner
	cores  *deviceplugin.Runner // nil where they are not offered

	metrics http.Handler
}

// kubelet says what it has given away, of our resources and of others.
type kubelet interface {
	nodestate.Kubelet
	coexist.Users
}

// newParts makes the parts.
func newParts(log *zap.Logger, cfg config, client kubernetes.Interface, kubelet kubelet, events event.Events, published func(context.Context) gpu.Inventory) *parts {
	names := cfg.names
	p := &parts{
		pods: nodepods.NewPods(client, names, cfg.nodeName, log.Named("pods")),
		node: nodepods.NewNode(client, names, cfg.nodeName, log.Named("node")),
	}
	p.pods.InShares(cfg.inShares())
	p.prober = newProber(log, cfg, published)
	registry := metrics.NewRegistry(version)
	p.metrics = metrics.Handler(registry)
	measured := metrics.NewDevicePlugin(registry)
	var described inventory.Source = p.prober
	if p.cdi = cfg.describer(log, p.prober); p.cdi != nil {
		described = p.cdi
	}
	p.ours = coexist.NewNode(cfg.devices, cfg.resource(), usersInterval, described, kubelet, events, log.Named("coexist"))
	p.ours.Continue(published)
	p.level = newLevel(log, cfg, p.ours, func() error { return connected(p.nri) }, func() error { return late(p.nri) })
	metrics.RegisterGPUs(registry, gpus{p.level, p.prober})
	cfg.plugin.Ready, cfg.plugin.Kernel, cfg.plugin.Cordoned = p.level.Ready, p.level, p.node.Cordoned
	dir := filepath.Join(cfg.kubeletDir, "device-plugins")
	cfg.plugin.Record = checkpoint.File(filepath.Join(dir, "gpumem-grants.json")) // goes with the kubelet's checkpoint
	cfg.plugin.Former = filepath.Join(dir, "gpumem-levels.json")
	p.plugin = deviceplugin.New(cfg.plugin, p.level, p.pods, kubelet, events, measured, log.Named("plugin"))
	p.ours.Retire(p.plugin.State.RetiredClients)
	p.usage = usage.New(cfg.toleranceMiB, p.prober, usage.Proc{Root: "/proc"}, p.pods, p.plugin.Containers, events, cfg.evictor(client, p.pods), log.Named("usage"))
	p.usage.Record(nodepods.NewUses(client, names))
	if cfg.nriSocket != "" {
		p.nri = nri.New(cfg.nriSocket, p.plugin.Containers, log.Named("nri"))
	}
	p.usage.Except(func(ctx context.Context) (map[int]bool, error) { return mps.Servers(ctx, cfg.mpsDir) })
	metrics.RegisterContainers(registry, p.usage.Samples, p.usage.ServerMemory)
	p.runner = deviceplugin.NewRunner(dir, cfg.resource(), p.plugin.Server, log.Named("runner"))
	p.runner.Answered, p.runner.TakeOver, p.runner.GiveWay = measured.Answered, p.plugin.State.Load, p.plugin.State.GiveWay
	if cfg.cores {
		p.cores = deviceplugin.NewRunner(dir, string(names.GPUCore()), p.plugin.Server.Cores(), log.Named("runner"))
		p.cores.Answered, p.cores.TakeOver = measured.Answered, p.plugin.State.Loaded
	}
	return p
}

// resetsFile returns the file with the GPUs that need a reset. It goes with the kubelet's checkpoint.
func resetsFile(kubeletDir string) string {
	return filepath.Join(kubeletDir, "device-plugins", "gpumem-resets.json")
}

// newProber returns who looks for the node's GPUs.
func newProber(log *zap.Logger, cfg config, published func(context.Context) gpu.Inventory) *nvml.Prober {
	return nvml.New(nvml.Config{
		Open:    nvml.Opener(cfg.nvmlLibrary, cfg.driverRoot),
		UnitMiB: cfg.unitMiB, MIG: cfg.mig, ReserveMiB: cfg.reserveMiB, Speeds: cfg.speeds, Offered: published,
		Interval: cfg.probeInterval, Retry: probeRetry, Timeout: probeTimeout,
		Recovery: probeRecovery, IgnoreXIDs: cfg.ignoreXIDs,
		Host: nvml.Host{Sys: "/sys", Proc: "/proc"}, Resets: resetsFile(cfg.kubeletDir),
	}, log.Named("nvml"))
}

// gpus are the node's, with how much they are in use.
type gpus struct {
	*enforcement.Node
	prober *nvml.Prober
}

func (g gpus) Usage(id gpu.UUID) (usedBytes uint64, busy float64, ok bool) { return g.prober.Usage(id) }

// newLevel returns the node's GPUs with the level that holds on them.
func newLevel(log *zap.Logger, cfg config, prober inventory.Source, connected, late func() error) *enforcement.Node {
	return enforcement.NewNode(cfg.mode, levelInterval, prober, enforcement.Probes{
		Cgroups: enforcement.Cgroups{Root: cfg.cgroupRoot},
		Driver:  nvml.NewLimits(nvml.Opener(cfg.nvmlLibrary, cfg.driverRoot)),
		NRI:     connected,
		Late:    late,
		MPS: func(ctx context.Context, devices []gpu.Device) ([]int, error) {
			return mps.Check(ctx, cfg.mpsDir, devices)
		},
	}, log.Named("enforcement"))
}
