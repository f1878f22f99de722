package main

import (
	"encoding/json"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

// TestMemory: what is measured keeps what it is told of, as a client that lists
// is told too.
func TestMemory(t *testing.T) {
	names, err := api.NewNames(api.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	const pods = 50
	for name, start := range map[string]keeper{"floor": floorOf(names), "extender": extenderOf(names)} {
		m, err := measure(t.Context(), names, pods, start)
		if err != nil || m.bytes <= 0 || m.ready <= 0 {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	server := startAPI(names, 3, pods)
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	list, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != pods {
		t.Fatalf("listed %d pods, %v; want %d", len(list.Items), err, pods)
	}
	assigned := 0
	for _, p := range list.Items {
		if a, err := names.AssignmentOf(&p); err != nil {
			t.Error(err)
		} else if !a.None() {
			assigned++
		}
	}
	if want := pods * gpuPods / 5; assigned != want {
		t.Errorf("%d pods have GPU memory, want %d", assigned, want)
	}
	if size := jsonSize(t, &list.Items[0]); size < 5<<10 || size > 10<<10 {
		t.Errorf("a pod has %d bytes, want about as many as real ones", size)
	}
}

func jsonSize(t *testing.T, pod *v1.Pod) int {
	t.Helper()
	data, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return len(data)
}

// TestNode: a container starts on a full node.
func TestNode(t *testing.T) {
	n, err := newNode(256)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.close(); err != nil {
			t.Error(err)
		}
	}()
	for range 2 {
		if took, err := n.start(t.Context()); err != nil || took.prefer <= 0 || took.allocate <= 0 || took.start <= 0 {
			t.Errorf("%+v, %v", took, err)
		}
	}
}
