package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/cdi"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/coexist"
	"github.com/gpumem/gpumem/pkg/node/enforcement"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/inventory"
	"github.com/gpumem/gpumem/pkg/node/mps"
	"github.com/gpumem/gpumem/pkg/node/nodeapi"
	"github.com/gpumem/gpumem/pkg/node/nri"
	"github.com/gpumem/gpumem/pkg/node/nvml"
	"github.com/gpumem/gpumem/pkg/node/usage"
	"github.com/gpumem/gpumem/pkg/process/serve"
	"github.com/gpumem/gpumem/pkg/report/metrics"
)

// Settings of NVML probes that have no flag.
const (
	probeRetry    = 10 * time.Second // while the driver or a GPU is missing
	probeTimeout  = 5 * time.Second
	probeRecovery = 3
)

// levelInterval is the interval at which the plugin verifies the enforcement level.
const levelInterval = 2 * time.Second

// usersInterval is the interval at which the plugin checks for other users of GPUs.
const usersInterval = 5 * time.Second

// kubelet lists the devices that the kubelet has allocated to containers, of gpumem's resources and of others.
type kubelet interface {
	grants.Kubelet
	coexist.Users
}

// node contains the allocator, and the parts of the process that both allocation APIs share.
type node struct {
	config
	log      *zap.Logger
	client   kubernetes.Interface
	kubelet  kubelet
	events   event.Events
	registry *prometheus.Registry

	prober *nvml.Prober
	cdi    *cdi.Writer     // nil if other software describes the GPUs to the runtime
	ours   *coexist.Filter // omits or marks the GPUs of other software
	level  *enforcement.LevelFilter
	pods   *nodeapi.Pods
	object *nodeapi.Publisher
	nri    *nri.Plugin // nil if NRI is off
	usage  *usage.Watch

	allocator
}

// allocator allocates the node's GPUs through one API: the extended resource, or claims.
type allocator struct {
	offers     *grants.Offers
	inventory  func() (gpu.Inventory, <-chan struct{}) // the offer that schedulers read
	account    func() (given []gpu.PodAllocation, known bool, changed <-chan struct{})
	allocated  func() (int, <-chan struct{}) // the number of pods or claims that hold GPU memory
	retired    coexist.Retired
	containers nri.Containers
	holders    usage.Pods
	grants     usage.Grants
	listed     []<-chan struct{} // schedulers may read the inventory once all are closed
	alive      func()
	checks     []serve.Check
	runs       []func(context.Context) error
	leave      func(context.Context) // returns when the kubelet no longer needs the process
}

// newNode creates the parts. It calls allocate to create the allocator from them.
func newNode(log *zap.Logger, cfg config, client kubernetes.Interface, kubelet kubelet, events event.Events, published func(context.Context) gpu.Inventory, allocate func(*node) allocator) *node {
	n := &node{
		config: cfg, log: log, client: client, kubelet: kubelet, events: events, registry: metrics.NewRegistry(version),
		pods:   nodeapi.NewPods(client, cfg.names, cfg.nodeName, log.Named("pods")),
		object: nodeapi.NewPublisher(client, cfg.names, cfg.nodeName, log.Named("node")),
	}
	open := nvml.Opener(cfg.nvmlLibrary, cfg.driverRoot)
	n.prober = nvml.New(nvml.Config{
		Open:    open,
		UnitMiB: cfg.unitMiB, MIG: cfg.mig, ReserveMiB: cfg.reserveMiB, Speeds: cfg.speeds, Offered: published,
		Interval: cfg.probeInterval, Retry: probeRetry, Timeout: probeTimeout,
		Recovery: probeRecovery, IgnoreXIDs: cfg.ignoreXIDs,
		Host: driverHost, Resets: resetsFile(cfg.kubeletDir),
	}, log.Named("nvml"))
	var described inventory.Upstream = n.prober
	if cfg.cdiHook != "" {
		n.cdi = cdi.NewWriter(cdi.Writer{
			Domain: cfg.names.Domain(), Dir: cfg.cdiDir, Hook: cfg.cdiHook,
			DriverRoot: cmp.Or(cfg.cdiDriverRoot, cfg.driverRoot), NodeRoot: cfg.cdiNodeRoot,
			Open: open, Load: driverHost.Load, Source: n.prober, Log: log.Named("cdi"),
		})
		described = n.cdi
	}
	n.ours = coexist.NewFilter(cfg.devices, cfg.resource(), usersInterval, described, kubelet, events, log.Named("coexist"))
	n.ours.SetIndexRecord(choiceFile(cfg.kubeletDir))
	if cfg.claims {
		n.ours.SetPublished(coexist.NewPublished(client, cfg.nodeName, cfg.names.Domain()))
	}
	n.level = enforcement.NewLevelFilter(cfg.mode, levelInterval, n.ours, enforcement.Probes{
		Cgroups:            enforcement.Cgroups{Root: cfg.cgroupRoot},
		Driver:             nvml.NewLimits(open),
		NRI:                n.connected,
		UnlimitedContainer: n.unlimitedContainer,
		MPS: func(ctx context.Context, devices []gpu.Device) ([]int, error) {
			return mps.Check(ctx, cfg.mpsDir, devices)
		},
	}, log.Named("enforcement"))
	n.allocator = allocate(n)
	n.ours.SetRetired(n.retired)
	if cfg.nriSocket != "" {
		n.nri = nri.New(cfg.nriSocket, n.containers, log.Named("nri"))
	}
	n.usage = usage.New(usage.Config{
		ToleranceMiB: cfg.toleranceMiB, Evict: cfg.onOveruse == overuseEvict,
		Servers: func(ctx context.Context) (map[int]bool, error) { return mps.Servers(ctx, cfg.mpsDir) },
	}, n.prober, usage.Proc{Root: "/proc"}, n.holders, n.grants, events, log.Named("usage"))
	metrics.RegisterGPUs(n.registry, gpus{n.level, n.prober})
	metrics.RegisterContainers(n.registry, n.usage.Samples, n.usage.ServerMemory)
	return n
}

// driverHost contains the file systems in which the kernel describes the driver.
var driverHost = nvml.Host{Sys: "/sys", Proc: "/proc"}

// resetsFile returns the path of the file that lists the GPUs that need a reset. It is in the directory of the
// kubelet's checkpoint.
func resetsFile(kubeletDir string) string {
	return filepath.Join(kubeletDir, "device-plugins", "gpumem-resets.json")
}

// choiceFile returns the file that records the first index of each GPU. The MPS supervisor reads it too.
func choiceFile(kubeletDir string) checkpoint.File {
	return checkpoint.File(filepath.Join(kubeletDir, "device-plugins", "gpumem-devices.json"))
}

// gpus provides the node's GPUs and their usage to metrics.
type gpus struct {
	*enforcement.LevelFilter
	prober *nvml.Prober
}

func (g gpus) Usage(id gpu.UUID) (usedBytes uint64, busy float64, ok bool) { return g.prober.Usage(id) }

// connected returns the reason why the container runtime does not call the plugin, or nil.
func (n *node) connected() error {
	if n.nri == nil {
		return errors.New("NRI is off: --nri-socket is empty")
	}
	return n.nri.Connected()
}

// unlimitedContainer returns an error that names a container without its limit, or nil.
func (n *node) unlimitedContainer() error {
	if n.nri == nil {
		return nil
	}
	return n.nri.UnlimitedContainer()
}

// start returns the functions to run; each runs until its context is done. NRI starts after the first probe (channel
// looked), because the GPUs are unknown before. The node's inventory is published after n.listed: before the kubelet
// has read the devices, it would reject the schedulers' pods.
func (n *node) start(probes net.Listener) []func(context.Context) error {
	looked := n.level.Looked()
	runs := []func(context.Context) error{
		n.prober.Run,
		n.pods.Run,
		n.ours.Run,
		n.level.Run,
		n.usage.Run,
		func(ctx context.Context) error { return serve.Run(ctx, probes, n.probes()) },
		runAfter(func(ctx context.Context) error { return n.object.Run(ctx, n.inventory, n.account) }, n.listed...),
	}
	if n.cdi != nil {
		runs = append(runs, n.cdi.Run)
	}
	if n.nri != nil {
		runs = append(runs, runAfter(n.nri.Run, looked))
	}
	return append(runs, n.runs...)
}

// runAfter returns a function that waits until all channels are closed, and then calls the function run.
func runAfter(run func(context.Context) error, closed ...<-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, c := range closed {
			select {
			case <-ctx.Done():
				return nil
			case <-c:
			}
		}
		return run(ctx)
	}
}

// shutdown returns when the process may end: after stop is closed and the plugin has shut down, or when a part
// fails.
func (n *node) shutdown(ctx context.Context, stop <-chan struct{}) {
	select {
	case <-stop:
	case <-ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeout(ctx, maxShutdown)
	defer cancel()
	n.leave(ctx)
	may := false // whether outlive waits until it has read the node's label; false if this process has never read the node
	select {
	case <-n.object.Read():
		may = true
	default:
	}
	outlive(ctx, n.log, may, n.object.ClientsStopped, n.allocated, daemonRuns(n.mpsDir))
}

// watchLabel returns a channel that is closed when the process should end: when the context is done, or when the
// node must serve another API or unit and nothing is allocated.
func (n *node) watchLabel(ctx context.Context, isOther func(label string) bool) <-chan struct{} {
	end := make(chan struct{})
	go func() {
		defer close(end)
		select {
		case <-ctx.Done():
			return
		case <-n.object.Read():
		}
		asked := func() (bool, <-chan struct{}) {
			said, changed := n.object.Settings()
			return isOther(said.API), changed
		}
		if replaced(ctx, asked, n.allocated) {
			n.log.Info("the process ends, because the node must serve another API or unit, and no pod or claim holds GPU memory")
		}
	}()
	return end
}

// probes handles the kubelet's probes and Prometheus's scrapes. A node without GPUs is ready, and shows the
// reason.
func (n *node) probes() http.Handler {
	measured := metrics.Handler(n.registry)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		checks := append([]serve.Check{n.gpusFound(), {Name: "pods", Missing: n.pods.Missing}, {Name: "inventory", Missing: n.object.Missing}}, n.checks...)
		serve.Probes(version, measured, n.alive, checks...).ServeHTTP(w, r)
	})
}

// gpusFound returns a check that the node offers its GPUs, or has none.
func (n *node) gpusFound() serve.Check {
	name, missing := "gpus", ""
	switch o, _ := n.offers.Current(); {
	case o.Refused:
		missing = o.Reason
	case o.Reason != "":
		select {
		case <-n.level.Looked():
			name = "gpus (none: " + o.Reason + ")"
		default:
			missing = o.Reason
		}
	}
	return serve.Check{Name: name, Missing: func() string { return missing }}
}
