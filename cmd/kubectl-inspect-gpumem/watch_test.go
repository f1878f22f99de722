package main

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// screen keeps what is written, and lets a test wait for words.
type screen struct {
	mu    sync.Mutex
	text  string
	wrote chan struct{}
}

func newScreen() *screen { return &screen{wrote: make(chan struct{}, 1)} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text += string(p)
	select {
	case s.wrote <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (s *screen) read() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text
}

func (s *screen) until(t *testing.T, words string) {
	t.Helper()
	for !strings.Contains(s.read(), words) {
		select {
		case <-s.wrote:
		case <-t.Context().Done():
			t.Fatalf("no %q in:\n%s", words, s.read())
		}
	}
}

// watching runs a command until stop is called, and returns what it prints.
func watching(t *testing.T, client kubernetes.Interface, args ...string) (out *screen, stop func()) {
	t.Helper()
	out = newScreen()
	o := newOptions(genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: out})
	o.client = client
	cmd := newCommand(o)
	cmd.SetArgs(args)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	return out, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

func TestWatchPrintsRowsThatChange(t *testing.T) {
	client := fake.NewClientset(makeNode(t, "gpu-a", inventory("gpu-a", 16, 80)))
	out, stop := watching(t, client, "gpus", "-w")
	out.until(t, "0/80")
	if _, err := client.CoreV1().Pods("ml").Create(t.Context(), makePod(t, "ml/new", "gpu-a", 5, uuid("gpu-a", 1)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out.until(t, "5/80")
	stop()
	if got := strings.Count(out.read(), "0/16"); got != 1 {
		t.Errorf("the GPU that has not changed was printed %d times:\n%s", got, out.read())
	}
}

func TestWatchHeadsTheFirstRows(t *testing.T) {
	client := fake.NewClientset(makeNode(t, "gpu-a", inventory("gpu-a", 16, 80)))
	out, stop := watching(t, client, "pods", "-w")
	out.until(t, "Nothing found")
	for i, name := range []string{"one", "two"} {
		if _, err := client.CoreV1().Pods("ml").Create(t.Context(), makePod(t, "ml/"+name, "gpu-a", 5, uuid("gpu-a", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		out.until(t, name)
	}
	stop()
	if got := strings.Count(out.read(), "NAMESPACE"); got != 1 || strings.Index(out.read(), "NAMESPACE") > strings.Index(out.read(), "one") {
		t.Errorf("%d headers, want one before the first row:\n%s", got, out.read())
	}
}

// Who watches pods sees them go, and what is made anew under their name.
func TestWatchPrintsPodsThatEnd(t *testing.T) {
	client := fake.NewClientset(makeNode(t, "gpu-a", inventory("gpu-a", 16)),
		makePod(t, "ml/goes", "gpu-a", 5, uuid("gpu-a", 0)), makePod(t, "ml/stays", "gpu-a", 5, uuid("gpu-a", 0)))
	out, stop := watching(t, client, "pods", "-w", "--no-headers")
	out.until(t, "stays")
	again := makePod(t, "ml/goes", "gpu-a", 5, uuid("gpu-a", 0))
	again.UID = "again"
	pods := client.CoreV1().Pods("ml")
	if err := pods.Delete(t.Context(), "goes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out.until(t, "Ended")
	stop()
	var got []string
	for line := range strings.Lines(out.read()) {
		if fields := strings.Fields(line); fields[0] == "ml" {
			got = append(got, fields[1]+" "+fields[len(fields)-1])
		}
	}
	if diff := cmp.Diff([]string{"goes Running", "stays Running", "goes Ended", "goes Running"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// That the pods cannot be read does not mean that they are gone.
func TestWatchTellsWhatCannotBeRead(t *testing.T) {
	client := fake.NewClientset(makeNode(t, "gpu-a", inventory("gpu-a", 16)), makePod(t, "ml/stays", "gpu-a", 5, uuid("gpu-a", 0)))
	var broken atomic.Bool
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return broken.Load(), nil, apierrors.NewServiceUnavailable("try later")
	})
	out, stop := watching(t, client, "pods", "-w")
	out.until(t, "stays")
	broken.Store(true)
	if _, err := client.CoreV1().Nodes().Create(t.Context(), makeNode(t, "gpu-b", inventory("gpu-b", 16)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out.until(t, "warning: pods: try later")
	stop()
	if strings.Contains(out.read(), "Ended") {
		t.Errorf("no pod has ended:\n%s", out.read())
	}
}
