package deviceplugin

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/inventory"
	"github.com/gpumem/gpumem/pkg/node/render"
)

// Config contains the settings of a Plugin. All fields must be set, except where a comment permits nil or
// empty.
type Config struct {
	grants.Config

	Coreless   bool // schedulers allocate no cores of this node
	Containers render.Config
	Record     checkpoint.Store // stores grants across restarts of the process; nil if they end with it
	Former     string           // file in which version 0.2 recorded levels; empty if none

	// Ready returns an error if a container that was promised a level must not start now.
	Ready func(ctx context.Context, level gpu.Enforcement, devices []gpu.Device) error
	// Kernel limits control groups; nil if no container has level kernel.
	Kernel render.Kernel

	PodWait time.Duration // maximum wait for an unknown pod, for example while the API server fails
}

// DefaultConfig returns the default settings, with timeouts for a real kubelet.
func DefaultConfig(node string) Config {
	return Config{
		Config: grants.Config{
			Node: node, Policy: placement.Binpack, PlaceUnassigned: true, KubeletWait: time.Second, WriteWait: 2 * time.Second,
		},
		Containers: render.DefaultConfig(), PodWait: 10 * time.Second,
		Ready: func(context.Context, gpu.Enforcement, []gpu.Device) error { return nil },
	}
}

// Plugin contains the parts of a device plugin.
type Plugin struct {
	Offers     *grants.Offers
	State      *grants.State
	Reconciler *grants.Reconciler
	Containers *render.Containers
	Announcer  *Announcer
	Server     *Server
}

// New creates a plugin and connects its parts.
func New(cfg Config, source inventory.Source, pods grants.Pods, kubelet grants.Kubelet, events event.Events, metrics grants.Metrics, log *zap.Logger) Plugin {
	p := Plugin{Offers: grants.NewOffers(source, cfg.Coreless)}
	p.State = grants.New(cfg.Config, p.Offers, pods, kubelet, grants.NewTable(cfg.Record, cfg.Former, log), log)
	p.Reconciler = grants.NewReconciler(cfg.Config, p.State, pods, events, metrics, log)
	p.Containers = render.New(cfg.Containers, cfg.Kernel, p.State, pods, events)
	p.Announcer = &Announcer{node: cfg.Node, offers: p.Offers, source: source, pods: pods, events: events, log: log}
	p.Server = &Server{cfg: cfg, offers: p.Offers, state: p.State, reconciler: p.Reconciler, pods: pods, events: events, log: log}
	return p
}

// CheckLocks blocks while a lock of the plugin is held. If the kubelet's liveness probe times out in
// CheckLocks, it has found a deadlock.
func (p Plugin) CheckLocks() {
	p.Offers.CheckLock()
	p.State.CheckLock()
	p.Reconciler.CheckLock()
}
