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

// Pods is grants.Pods that can list the pods again.
type Pods interface {
	grants.Pods
	Refresh(ctx context.Context) error // lists the pods from the API server
}

// Config is what a Plugin is to do. All fields are to be set, but for those that
// say otherwise.
type Config struct {
	Node            string
	Policy          placement.Policy // for pods that name none
	PlaceUnassigned bool             // place pods that no scheduler placed; otherwise refuse them
	Coreless        bool             // schedulers are to give no cores of this node to pods
	Containers      containers.Config
	Record          checkpoint.Store // has the grants of containers when the process ends; nil: they end with it
	Former          string           // file in which version 0.2 recorded levels; empty: none
	Published       gpu.Inventory    // by the node's annotation at the start of the process; empty: none

	// Ready says why a container that was promised a level must not start now.
	Ready func(ctx context.Context, level gpu.Enforcement, devices []gpu.Device) error
	// Kernel holds control groups to limits; nil where no level is kernel.
	Kernel containers.Kernel

	// Cordoned tells which GPUs get no pods that no scheduler placed; nil: none.
	// To the kubelet they stay healthy: it would not restart the containers on
	// them otherwise.
	Cordoned func() []gpu.UUID

	PodWait     time.Duration // for the news of a pod for which the kubelet asks, while the API server does not answer
	KubeletWait time.Duration // for an answer of the kubelet
	WriteWait   time.Duration // for the correction of a pod whose container is to start
}

// DefaultConfig returns the waits that suit a real kubelet, and the defaults of
// the rest.
func DefaultConfig(node string) Config {
	return Config{
		Node: node, Policy: placement.Binpack, PlaceUnassigned: true, Containers: containers.DefaultConfig(),
		Ready:   func(context.Context, gpu.Enforcement, []gpu.Device) error { return nil },
		PodWait: 10 * time.Second, KubeletWait: time.Second, WriteWait: 2 * time.Second,
	}
}

// Plugin is the parts of a device plugin, put together.
type Plugin struct {
	Offers     *grants.Offers
	State      *grants.State
	Reconciler *grants.Reconciler
	Containers *containers.Containers
	Announcer  *Announcer
	Server     *Server
}

// New puts a plugin together.
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

// Alive returns unless a lock of the plugin is never released: it is for the kubelet's liveness probe.
func (p Plugin) Alive() {
	p.Offers.Alive()
	p.State.Alive()
	p.Reconciler.Alive()
}
