// Command gpumem-device-plugin offers the GPU memory of its node to the kubelet,
// tells containers which GPU they got, and keeps what is written of both true.
// Called as "gpumem-device-plugin mps", it keeps NVIDIA's MPS daemon running.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/coexist"
	"github.com/gpumem/gpumem/pkg/containers"
	"github.com/gpumem/gpumem/pkg/daemon"
	"github.com/gpumem/gpumem/pkg/deviceplugin"
	"github.com/gpumem/gpumem/pkg/enforcement"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/inventory"
	"github.com/gpumem/gpumem/pkg/metrics"
	"github.com/gpumem/gpumem/pkg/mps"
	"github.com/gpumem/gpumem/pkg/nodepods"
	"github.com/gpumem/gpumem/pkg/nodestate"
	"github.com/gpumem/gpumem/pkg/nri"
	"github.com/gpumem/gpumem/pkg/nvml"
	"github.com/gpumem/gpumem/pkg/podresources"
	"github.com/gpumem/gpumem/pkg/serve"
	"github.com/gpumem/gpumem/pkg/usage"
)

// version is set by the linker.
var version = "dev"

// How NVML is probed, beside what flags say.
const (
	probeRetry    = 10 * time.Second // while there is no driver, or no GPU
	probeTimeout  = 5 * time.Second
	probeRecovery = 3
)

// levelInterval is the time between two looks at who enforces limits.
const levelInterval = 2 * time.Second

// usersInterval is the time between two looks at who else uses GPUs.
const usersInterval = 5 * time.Second

func main() { os.Exit(daemon.Main("gpumem-device-plugin", run)) }

// run is main with its surroundings passed in.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == mpsCommand {
		return runMPS(ctx, args[1:], stdout, stderr)
	}
	opts := defaultOptions()
	switch err := opts.parse(args, stdout); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return err
	case opts.showVersion:
		fmt.Fprintln(stdout, version)
		return nil
	}
	if err := opts.validate(); err != nil {
		return err
	}
	log, err := opts.log.New(stderr)
	if err != nil {
		return err
	}
	daemon.BridgeKlog(log)
	log.Info("starting", zap.String("version", version), zap.Any("options", daemon.Effective(opts.flags)))
	return start(ctx, log, opts)
}

// parts are what the process is made of.
type parts struct {
	prober *nvml.Prober
	ours   *coexist.Node // the prober's without those of others
	level  *enforcement.Node
	pods   *nodepods.Pods
	node   *nodepods.Node
	plugin deviceplugin.Plugin
	usage  *usage.Watch
	nri    *nri.Plugin // nil where the runtime is not to call us
	runner *deviceplugin.Runner
	cores  *deviceplugin.Runner // nil where they are not offered
	count  *deviceplugin.Runner // of the resource that counts GPUs; nil unless names are gpushare's

	metrics http.Handler
}

// start wires the parts together and runs them until the context is done, and for
// as long after that as it takes to leave.
func start(ctx context.Context, log *zap.Logger, opts options) (err error) {
	client, err := opts.kube.Client("gpumem-device-plugin", version)
	if err != nil {
		return err
	}
	names, err := api.NewNames(opts.domain)
	if err != nil {
		return err
	}
	kubelet, err := podresources.New(filepath.Join(opts.kubeletDir, "pod-resources", "kubelet.sock"), string(names.GPUMem()), string(names.GPUCore()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kubelet.Close()) }()
	told := ctx.Done()
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group, ctx := errgroup.WithContext(ctx)
	events, err := nodepods.NewEvents(ctx, client, "gpumem-device-plugin", opts.nodeName)
	if err != nil {
		return err
	}
	p, err := newParts(log, opts, names, client, kubelet, events)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", opts.probeListen)
	if err != nil {
		return fmt.Errorf("listen for probes: %w", err)
	}
	group.Go(func() error { return p.prober.Run(ctx) })
	group.Go(func() error { return p.pods.Run(ctx) })
	group.Go(func() error { return when(ctx, p.prober.Probed(), func() error { return p.ours.Run(ctx) }) })
	group.Go(func() error { return when(ctx, p.ours.Looked(), func() error { return p.level.Run(ctx) }) })
	group.Go(func() error { return p.plugin.Announcer.Announce(ctx) })
	group.Go(func() error { return p.plugin.Announcer.AnnounceHealth(ctx) })
	group.Go(func() error { return p.plugin.Reconciler.Run(ctx) })
	group.Go(func() error { return p.usage.Run(ctx) })
	if p.nri != nil {
		group.Go(func() error { return p.whenLooked(ctx, func() error { return p.nri.Run(ctx) }) })
	}
	group.Go(func() error { return serve.Run(ctx, listener, p.probes()) })
	// Before the first probe nobody is to hear that there is no GPU. And schedulers hear of
	// GPUs after the kubelet: it would fail the pods that they send.
	group.Go(func() error {
		return p.whenListed(ctx, func() error { return p.node.Run(ctx, p.plugin.Offers.Inventory, p.plugin.State.Given) })
	})
	group.Go(func() error { return p.whenLooked(ctx, func() error { return p.runner.Run(ctx) }) })
	if p.cores != nil {
		group.Go(func() error { return p.whenLooked(ctx, func() error { return p.cores.Run(ctx) }) })
	}
	if p.count != nil {
		group.Go(func() error { return p.whenLooked(ctx, func() error { return p.count.Run(ctx) }) })
	}
	group.Go(func() error {
		defer end()
		p.leave(ctx, told)
		return nil
	})
	log.Info("serving", zap.Stringer("probes", listener.Addr()))
	err = group.Wait()
	log.Info("stopped", zap.Error(err))
	return err
}

// kubelet says what it has given away, of our resources and of others.
type kubelet interface {
	nodestate.Kubelet
	coexist.Users
}

func newParts(log *zap.Logger, opts options, names api.Names, client kubernetes.Interface, kubelet kubelet, events deviceplugin.Events) (*parts, error) {
	xids, err := parseXIDs(opts.ignoreXIDs)
	if err != nil {
		return nil, err
	}
	speeds, err := nvml.ReadSpeeds(opts.gpuSpeeds)
	if err != nil {
		return nil, err
	}
	cfg := deviceplugin.DefaultConfig(opts.nodeName)
	cfg.PlaceUnassigned = opts.unassigned == unassignedPlace
	if cfg.Policy, err = api.ParseFallback(opts.policy); err != nil {
		return nil, err
	}
	if cfg.Containers.Strategy, err = containers.ParseStrategy(opts.strategy); err != nil {
		return nil, err
	}
	if cfg.Containers.Frameworks, err = containers.ParseFrameworks(opts.frameworkEnv); err != nil {
		return nil, err
	}
	cfg.Containers.GPUShare, cfg.Coreless = names.GPUShare(), !opts.cores
	node := nodepods.NewNode(client, names, opts.nodeName, log.Named("node"))
	p := &parts{
		prober: nvml.New(nvml.Config{
			Open:    nvml.Opener(opts.nvmlLibrary, opts.driverRoot),
			UnitMiB: opts.unitMiB, ReserveMiB: opts.reserveMiB, Speeds: speeds, Told: node.Told,
			Interval: opts.probeInterval, Retry: probeRetry, Timeout: probeTimeout,
			Recovery: probeRecovery, IgnoreXIDs: xids,
		}, log.Named("nvml")),
		pods: nodepods.NewPods(client, names, opts.nodeName, log.Named("pods")),
		node: node,
	}
	registry := metrics.NewRegistry()
	p.metrics = metrics.Handler(registry)
	measured := metrics.NewDevicePlugin(registry)
	selector, err := coexist.ParseSelector(opts.devices)
	if err != nil {
		return nil, err
	}
	p.ours = coexist.NewNode(selector, string(names.GPUMem()), usersInterval, p.prober, kubelet, events, log.Named("coexist"))
	p.level = newLevel(log, opts, p.ours, func() error { return p.connected() })
	metrics.RegisterGPUs(registry, gpus{p.level, p.prober})
	cfg.Containers.MPSDir, cfg.Ready, cfg.Hold = opts.mpsDir, p.level.Ready, p.level.Hold
	cfg.Cordoned = p.node.Cordoned
	p.plugin = deviceplugin.New(cfg, p.level, p.pods, kubelet, events, measured, log.Named("plugin"))
	p.usage = usage.New(opts.toleranceMiB, p.prober, usage.Proc{Root: "/proc"}, p.pods, p.plugin.Containers, events, opts.evictor(client), log.Named("usage"))
	if opts.nriSocket != "" {
		p.nri = nri.New(opts.nriSocket, p.plugin.Containers, log.Named("nri"))
	}
	metrics.RegisterContainers(registry, p.usage.Samples)
	dir := filepath.Join(opts.kubeletDir, "device-plugins")
	p.runner = deviceplugin.NewRunner(dir, string(names.GPUMem()), p.plugin.Server, log.Named("runner"))
	p.runner.Answered = measured.Answered
	if opts.cores {
		p.cores = deviceplugin.NewRunner(dir, string(names.GPUCore()), p.plugin.Server.Cores(), log.Named("runner"))
		p.cores.Answered = measured.Answered
	}
	if names.GPUShare() {
		p.count = deviceplugin.NewRunner(dir, string(names.GPUCount()), deviceplugin.NewCount(p.plugin.Offers.Inventory), log.Named("runner"))
	}
	return p, nil
}

// gpus are the node's, with how much they are in use.
type gpus struct {
	*enforcement.Node
	prober *nvml.Prober
}

func (g gpus) Usage(id gpu.UUID) (usedBytes uint64, busy float64, ok bool) { return g.prober.Usage(id) }

// newLevel returns the node's GPUs with the level that holds on them.
func newLevel(log *zap.Logger, opts options, prober inventory.Source, connected func() error) *enforcement.Node {
	return enforcement.NewNode(enforcement.Mode(opts.enforcement), levelInterval, prober, enforcement.Probes{
		Cgroups: enforcement.Cgroups{Root: opts.cgroupRoot},
		Hook:    enforcement.NewToolkit(opts.hostRoot, opts.driverRoot).Hook,
		NRI:     connected,
		MPS:     mps.NewClient(opts.mpsDir).Check,
	}, log.Named("enforcement"))
}

// connected says why the container runtime does not call the plugin.
func (p *parts) connected() error {
	if p.nri == nil {
		return errors.New("the container runtime is not asked to call the plugin")
	}
	return p.nri.Connected()
}

// whenLooked runs something once the GPUs have been looked for, and it is known
// at which level containers are held to their grants.
func (p *parts) whenLooked(ctx context.Context, run func() error) error {
	return when(ctx, p.level.Looked(), run)
}

// whenListed runs something once the kubelet has been told what there is.
func (p *parts) whenListed(ctx context.Context, run func() error) error {
	if p.cores == nil {
		return when(ctx, p.runner.Listed(), run)
	}
	return when(ctx, p.runner.Listed(), func() error { return when(ctx, p.cores.Listed(), run) })
}

// leave returns when the process has been told to end, and may, or when a part has
// failed. What the kubelet never heard of need not be taken back.
func (p *parts) leave(ctx context.Context, told <-chan struct{}) {
	select {
	case <-told:
	case <-ctx.Done():
		return
	}
	select {
	case <-p.runner.Listed():
		p.plugin.Announcer.Leave(ctx, p.node.Withdraw)
	default:
	}
}

// when runs something once a channel is closed.
func when(ctx context.Context, closed <-chan struct{}, run func() error) error {
	select {
	case <-ctx.Done():
		return nil
	case <-closed:
		return run()
	}
}

// probes answers the kubelet's probes, and Prometheus. A node without a GPU is ready, and says
// why it offers nothing.
func (p *parts) probes() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serve.Probes(version, p.metrics, p.plugin.State.Alive, p.checks()...).ServeHTTP(w, r)
	})
}

func (p *parts) checks() []serve.Check {
	say := func(missing string) func() string { return func() string { return missing } }
	found := serve.Check{Name: "gpus", Missing: say("")}
	switch why, mistake := p.plugin.Announcer.Nothing(); {
	case mistake:
		found.Missing = say(why)
	case why != "":
		select {
		case <-p.level.Looked():
			found.Name = "gpus (none: " + why + ")"
		default:
			found.Missing = say(why)
		}
	}
	checks := []serve.Check{
		found,
		{Name: "pods", Missing: p.pods.Missing},
		{Name: "kubelet", Missing: p.runner.Missing},
		{Name: "inventory", Missing: p.node.Missing},
	}
	if p.cores != nil {
		checks = append(checks, serve.Check{Name: "kubelet, gpu-core", Missing: p.cores.Missing})
	}
	if p.count != nil {
		checks = append(checks, serve.Check{Name: "kubelet, gpu-count", Missing: p.count.Missing})
	}
	return checks
}
