// Package process runs the device plugin on the fakes of package plugintest. Tests of package deviceplugin cannot
// use package process, which imports deviceplugin.
package process

import (
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

// Node is a plugin with its fakes, and a client in place of the kubelet.
type Node struct {
	*plugintest.Node
	deviceplugin.Plugin
}

// New returns a node with a started plugin. The kubelet lists the known pods. Parameter change adapts the plugin's
// configuration, and may be nil.
func New(t *testing.T, change func(*deviceplugin.Config), known []string, list ...allocation.Pod) *Node {
	t.Helper()
	n := &Node{Node: plugintest.NewNode(known, list...)}
	n.Begin(t, change)
	return n
}

// Begin replaces the plugin by a new process. If change sets the path of the record of allocations, the new process
// loads the record.
func (n *Node) Begin(t *testing.T, change func(*deviceplugin.Config)) {
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
