package grants_test

import (
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

var (
	pod       = plugintest.Pod
	app       = plugintest.App
	container = plugintest.Container
)

const (
	uuidA = plugintest.GPUA
	uuidB = plugintest.GPUB
)

// node is a plugin with all that surrounds it, and a client in the kubelet's place.
type node struct {
	*plugintest.Node
	deviceplugin.Plugin
}

func newNode(t *testing.T, change func(*deviceplugin.Config), known []string, list ...allocation.Pod) *node {
	t.Helper()
	n := &node{Node: plugintest.NewNode(known, list...)}
	n.begin(t, change)
	return n
}

// begin begins with a plugin that knows nothing.
func (n *node) begin(t *testing.T, change func(*deviceplugin.Config)) {
	t.Helper()
	cfg := deviceplugin.DefaultConfig("n1")
	cfg.PodWait = 50 * time.Millisecond
	if change != nil {
		change(&cfg)
	}
	n.Plugin = deviceplugin.New(cfg, n.Source, n.Pods, n.Kubelet, n.Notes, n.Counts, zap.NewNop())
	if err := n.State.Load(); err != nil {
		t.Fatal(err)
	}
	n.Client = plugintest.Connect(t, n.Server)
}
