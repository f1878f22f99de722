package scheduler

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/internalinterfaces"
	toolscache "k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	inTree "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/gpumem/gpumem/cmd/gpumem-scheduler/plugin"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/scheduler/lease"
	"github.com/gpumem/gpumem/pkg/scheduler/service"
)

// A mode is by what kube-scheduler knows of GPUs.
type mode struct {
	name  string
	setup setup
}

// modes are both.
var modes = []mode{{"extender", func(*cluster) {}}, {"plugin", inProcess}}

// weight is that of the plugin's scores among those of others, as the chart has it.
const weight = 50

// inProcess has the plugin decide in place of the extender.
func inProcess(c *cluster) {
	names, err := api.NewNames(api.DefaultDomain)
	if err != nil {
		panic(err) // the default is right
	}
	names.UnitMiB = 1024
	c.state = plugin.NewState(zap.NewNop(), "test", service.Config{
		ProbeListen: "127.0.0.1:0", ReadListen: "127.0.0.1:0", AssumeLimit: 30 * time.Second, SelfCheck: time.Minute,
		Names: names, Policies: ranking.Policies{GPU: placement.Binpack},
	})
	c.cache = c.state.Binder.Cache
	c.cfg.Extenders = nil
	c.toExtender = c.toScheduler // there is one watch
	for i := range c.cfg.Profiles {
		p := &c.cfg.Profiles[i]
		if p.Plugins == nil {
			p.Plugins = &config.Plugins{}
		}
		ours := config.PluginSet{Enabled: []config.Plugin{{Name: plugin.Name}}}
		p.Plugins.MultiPoint.Enabled = append(p.Plugins.MultiPoint.Enabled, config.Plugin{Name: plugin.Name, Weight: weight})
		p.Plugins.Bind, p.Plugins.PostFilter = ours, ours
		for _, name := range []string{inTree.NodeUnschedulable, inTree.NodeName, inTree.TaintToleration, inTree.NodeAffinity, inTree.NodePorts, plugin.Name} {
			p.Plugins.Filter.Enabled = append(p.Plugins.Filter.Enabled, config.Plugin{Name: name}) // as the chart has it
		}
	}
}

// counted is the plugin that writes down which pods are tried.
type counted struct {
	*plugin.Plugin
	cluster *cluster
}

func (p counted) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	p.cluster.mu.Lock()
	p.cluster.filter = append(p.cluster.filter, question{pod: pod.Name})
	p.cluster.mu.Unlock()
	return p.Plugin.PreFilter(ctx, state, pod, nodes)
}

func (p counted) Filter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	if !p.cluster.uncounted {
		p.cluster.mu.Lock()
		p.cluster.filtered[pod.Name]++
		p.cluster.mu.Unlock()
	}
	return p.Plugin.Filter(ctx, state, pod, info)
}

// registry has the plugin, where it decides.
func (c *cluster) registry() frameworkruntime.Registry {
	if c.state == nil {
		return nil
	}
	return frameworkruntime.Registry{plugin.Name: func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		made, err := c.state.New(ctx, args, lagging{handle, c.late})
		if err != nil {
			return nil, err
		}
		return counted{made.(*plugin.Plugin), c}, nil
	}}
}

// startPlugin does what cmd/gpumem-scheduler does before kube-scheduler runs.
func (c *cluster) startPlugin(ctx context.Context, t testing.TB, running *sync.WaitGroup) {
	t.Helper()
	for name, profile := range c.scheduler.Profiles {
		if err := plugin.Check(name, profile.ListPlugins()); err != nil && !c.unchecked {
			t.Fatal(err)
		}
	}
	if !c.unhinted {
		c.state.EnableHints(c.scheduler.Profiles)
	}
	c.state.Binder.Leads = lease.LeadAlone(time.Now())
	c.watch = c.state.Watch
	running.Go(func() {
		if err := c.state.Run(ctx); err != nil {
			t.Errorf("the plugin's service: %v", err)
		}
	})
}

// lagging is a handle by which one hears late that pods are gone.
type lagging struct {
	fwk.Handle
	late time.Duration
}

func (l lagging) SharedInformerFactory() informers.SharedInformerFactory {
	return laggingFactory{l.Handle.SharedInformerFactory(), l.late}
}

type laggingFactory struct {
	informers.SharedInformerFactory
	late time.Duration
}

func (f laggingFactory) Core() coreinformers.Interface {
	return coreinformers.New(f, metav1.NamespaceAll, nil)
}

func (f laggingFactory) InformerFor(object runtime.Object, create internalinterfaces.NewInformerFunc) toolscache.SharedIndexInformer {
	informer := f.SharedInformerFactory.InformerFor(object, create)
	if _, ok := object.(*v1.Pod); !ok {
		return informer
	}
	return laggingInformer{informer, f.late}
}

type laggingInformer struct {
	toolscache.SharedIndexInformer
	late time.Duration
}

func (i laggingInformer) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    handler.OnAdd,
		UpdateFunc: handler.OnUpdate,
		DeleteFunc: func(obj any) {
			if i.late > 0 {
				<-time.After(i.late)
			}
			handler.OnDelete(obj)
		},
	})
}
