package deviceplugin

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/containers"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// Pods lists the node's bound pods.
type Pods interface {
	grants.Pods
}

// Config contains the settings of a Plugin. All fields must be set, except where a comment permits nil or
// empty.
type Config struct {
	Node            string
	Policy          placement.Policy // for pods without a policy
	PlaceUnassigned bool             // place pods that no scheduler placed; otherwise reject them
	Coreless        bool             // schedulers allocate no cores of this node
	Containers      containers.Config
	Record          checkpoint.Store // stores grants across restarts of the process; nil if they end with it
	Former          string           // file in which version 0.2 recorded levels; empty if none
	Published       gpu.Inventory    // from the node's annotation at the start of the process; empty if there was none

	// Ready returns an error if a container that was promised a level must not start now.
	Ready func(ctx context.Context, level gpu.Enforcement, devices []gpu.Device) error
	// Kernel limits control groups; nil if no container has level kernel.
	Kernel containers.Kernel

	// Cordoned returns the GPUs that accept no pods without a scheduler's placement; nil if there are none.
	// They stay healthy for the kubelet, which would otherwise not restart their containers.
	Cordoned func() []gpu.UUID

	PodWait     time.Duration // for an unknown pod, including failures of the API server
	KubeletWait time.Duration // for an answer of the kubelet
	WriteWait   time.Duration // for the correction of a pod before its container starts
}

// DefaultConfig returns the default settings, with timeouts for a real kubelet.
func DefaultConfig(node string) Config {
	return Config{
		Node: node, Policy: placement.Binpack, PlaceUnassigned: true, Containers: containers.DefaultConfig(),
		Ready:   func(context.Context, gpu.Enforcement, []gpu.Device) error { return nil },
		PodWait: 10 * time.Second, KubeletWait: time.Second, WriteWait: 2 * time.Second,
	}
}

// Plugin contains the parts of a device plugin.
type Plugin struct {
	Offers     *grants.Offers
	State      *grants.State
	Reconciler *grants.Reconciler
	Containers *containers.Containers
	Announcer  *Announcer
	Server     *Server
}

// New creates a plugin and connects its parts.
func New(cfg Config, source inventory.Source, pods Pods, kubelet grants.Kubelet, events event.Events, metrics grants.Metrics, log *zap.Logger) Plugin {
	p := Plugin{Offers: grants.NewOffers(source, cfg.Coreless)}
	place := grants.Config{
		Node: cfg.Node, Policy: cfg.Policy, PlaceUnassigned: cfg.PlaceUnassigned, Cordoned: cfg.Cordoned,
		KubeletWait: cfg.KubeletWait, WriteWait: cfg.WriteWait, Published: cfg.Published,
	}
	p.State = grants.New(place, p.Offers, pods, kubelet, grants.NewTable(cfg.Record, cfg.Former, log), log)
	p.Reconciler = grants.NewReconciler(place, p.State, pods, events, metrics, log)
	p.Containers = containers.New(cfg.Containers, cfg.Kernel, p.State, pods, events)
	p.Announcer = &Announcer{node: cfg.Node, offers: p.Offers, source: source, pods: pods, events: events, log: log}
	p.Server = &Server{cfg: cfg, offers: p.Offers, state: p.State, reconciler: p.Reconciler, pods: pods, events: events, log: log}
	return p
}

// Alive returns, unless a lock of the plugin is never released. The kubelet's liveness probe uses it.
func (p Plugin) Alive() {
	p.Offers.Alive()
	p.State.Alive()
	p.Reconciler.Alive()
}
