package deviceplugin

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// node is a plugin with its fakes, and a client in place of the kubelet.
type node struct {
	*plugintest.Node
	Plugin
}

func newNode(t *testing.T, change func(*Config), known []string, list ...allocation.Pod) *node {
	t.Helper()
	n := &node{Node: plugintest.NewNode(known, list...)}
	n.begin(t, change)
	return n
}

// begin starts a plugin without any state.
func (n *node) begin(t *testing.T, change func(*Config)) {
	t.Helper()
	cfg := DefaultConfig("n1")
	cfg.PodWait = 50 * time.Millisecond
	if change != nil {
		change(&cfg)
	}
	n.Plugin = New(cfg, n.Source, n.Pods, n.Kubelet, n.Notes, n.Counts, zap.NewNop())
	if err := n.State.Load(); err != nil {
		t.Fatal(err)
	}
	n.Client = plugintest.Connect(t, n.Server)
}

func wantStatus(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	s, ok := status.FromError(err)
	if err == nil || !ok || s.Code() != code || !strings.Contains(s.Message(), text) {
		t.Errorf("error %v, want %s with %q", err, code, text)
	}
}
