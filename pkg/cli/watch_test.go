package cli_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

func TestWatchPrintsRowsThatChange(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 80)))
	out, stop := clirun.Watch(t, client, "gpus", "-w")
	out.Until(t, "0/80")
	if _, err := client.CoreV1().Pods("ml").Create(t.Context(), kubetest.Pod(t, "ml/new", "gpu-a", 5, kubetest.UUID("gpu-a", 1)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out.Until(t, "5/80")
	stop()
	if got := strings.Count(out.Text(), "0/16"); got != 1 {
		t.Errorf("the GPU that has not changed was printed %d times:\n%s", got, out.Text())
	}
}

func TestWatchHeadsTheFirstRows(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 80)))
	out, stop := clirun.Watch(t, client, "pods", "-w")
	out.Until(t, "Nothing found")
	for i, name := range []string{"one", "two"} {
		if _, err := client.CoreV1().Pods("ml").Create(t.Context(), kubetest.Pod(t, "ml/"+name, "gpu-a", 5, kubetest.UUID("gpu-a", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		out.Until(t, name)
	}
	stop()
	if got := strings.Count(out.Text(), "NAMESPACE"); got != 1 || strings.Index(out.Text(), "NAMESPACE") > strings.Index(out.Text(), "one") {
		t.Errorf("%d headers, want one before the first row:\n%s", got, out.Text())
	}
}

// A watch shows pods that end, and new pods with the same name.
func TestWatchPrintsPodsThatEnd(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)),
		kubetest.Pod(t, "ml/goes", "gpu-a", 5, kubetest.UUID("gpu-a", 0)), kubetest.Pod(t, "ml/stays", "gpu-a", 5, kubetest.UUID("gpu-a", 0)))
	out, stop := clirun.Watch(t, client, "pods", "-w", "--no-headers")
	out.Until(t, "stays")
	again := kubetest.Pod(t, "ml/goes", "gpu-a", 5, kubetest.UUID("gpu-a", 0))
	again.UID = "again"
	pods := client.CoreV1().Pods("ml")
	if err := pods.Delete(t.Context(), "goes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out.Until(t, "Ended")
	stop()
	var got []string
	for line := range strings.Lines(out.Text()) {
		if fields := strings.Fields(line); fields[0] == "ml" {
			got = append(got, fields[1]+" "+fields[len(fields)-1])
		}
	}
	if diff := cmp.Diff([]string{"goes Running", "stays Running", "goes Ended", "goes Running"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// If the pods cannot be read, a watch does not report them as ended.
func TestWatchTellsWhatCannotBeRead(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), kubetest.Pod(t, "ml/stays", "gpu-a", 5, kubetest.UUID("gpu-a", 0)))
	var broken atomic.Bool
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return broken.Load(), nil, apierrors.NewServiceUnavailable("try later")
	})
	out, stop := clirun.Watch(t, client, "pods", "-w")
	out.Until(t, "stays")
	broken.Store(true)
	if _, err := client.CoreV1().Nodes().Create(t.Context(), kubetest.Node(t, "gpu-b", kubetest.Inventory("gpu-b", 16)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out.Until(t, "warning: pods: try later")
	stop()
	if strings.Contains(out.Text(), "Ended") {
		t.Errorf("no pod has ended:\n%s", out.Text())
	}
}

// The columns of later rows line up with the first rows.
func TestWatchKeepsItsColumns(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), kubetest.Pod(t, "ml/a-long-name-of-a-pod", "gpu-a", 5, kubetest.UUID("gpu-a", 0)))
	out, stop := clirun.Watch(t, client, "pods", "-w")
	out.Until(t, "a-long-name")
	if _, err := client.CoreV1().Pods("ml").Create(t.Context(), kubetest.Pod(t, "ml/b", "gpu-a", 5, kubetest.UUID("gpu-a", 0)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out.Until(t, "ml         b ")
	stop()
	header, at := "", 0
	for line := range strings.Lines(out.Text()) {
		switch {
		case strings.HasPrefix(line, "NAMESPACE"):
			header, at = line, strings.Index(line, "NODE")
		case strings.HasPrefix(line, "ml ") && !strings.HasPrefix(line[at:], "gpu-a "):
			t.Errorf("not in the columns of\n%s%s", header, line)
		}
	}
}
