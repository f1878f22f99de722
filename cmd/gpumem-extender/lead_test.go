package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/scheduler/binder"
)

// A process serves no request while another one leads. When it exits, it releases the Lease once no binding
// of unknown outcome can land any more. The test runs in real time, because the process listens on ports.
func TestAProcessTakesPartInTheElection(t *testing.T) {
	t.Parallel()
	const namespace, name = "gpumem-system", "gpumem-extender"
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("other"), LeaseDurationSeconds: new(int32(15)), RenewTime: new(metav1.NowMicro()), AcquireTime: new(metav1.NowMicro()),
		},
	}
	client := fake.NewClientset(lease,
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Annotations: map[string]string{
			"gpumem.dev/inventory": `{"v":1,"unitMiB":1024,"gpus":[{"uuid":"GPU-a","index":0,"memoryMiB":16384,"units":16,"healthy":true}]}`,
		}}},
		&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "1"}, Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "main", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("3")}},
		}}}},
	)
	var mu sync.Mutex
	var sent, released time.Time
	bindings, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		sent = time.Now()
		return nil, errors.New("the connection is lost")
	})})
	if err != nil {
		t.Fatal(err)
	}
	client.PrependReactor("update", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		is, ok := a.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease)
		mu.Lock()
		defer mu.Unlock()
		if ok && !sent.IsZero() && (is.Spec.HolderIdentity == nil || *is.Spec.HolderIdentity == "") {
			released = time.Now()
		}
		return false, nil, nil
	})

	client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		_, ofNode := a.(clienttesting.ListAction).GetListRestrictions().Fields.RequiresExactMatch("spec.nodeName")
		return ofNode, &v1.PodList{}, nil // the fake client ignores the selector
	})

	var o options
	args := []string{
		"--listen=127.0.0.1:0", "--probe-listen=127.0.0.1:0", "--read-listen=127.0.0.1:0",
		"--leader-elect", "--leader-elect-lease-namespace=" + namespace, "--leader-elect-identity=self",
	}
	if err := o.parse(args, io.Discard); err != nil {
		t.Fatal(err)
	}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.InfoLevel)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- start(ctx, zap.New(core), &o, binding{client, bindings.CoreV1().RESTClient()}) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	address := ""
	await(t, "the process serves", func() string {
		for _, line := range logs.FilterMessage("serving").All() {
			address = line.ContextMap()["verbs"].(string)
		}
		return address
	}, "127.0.0.1")
	ask := func(verb, body string) func() string {
		return func() string {
			resp, err := http.Post("http://"+address+verb, "application/json", strings.NewReader(body))
			if err != nil {
				return err.Error()
			}
			defer resp.Body.Close()
			answer, _ := io.ReadAll(resp.Body)
			return string(answer)
		}
	}
	pod := `{"Pod":{"metadata":{"namespace":"team","name":"web","uid":"1"},"spec":{"containers":[{"name":"main","resources":{"limits":{"gpumem.dev/gpu-mem":"3"}}}]}},"NodeNames":["node"]}`
	await(t, "filter while another leads", ask("/filter", pod), "replica other leads")

	lease = lease.DeepCopy()
	lease.Spec.HolderIdentity = new("")
	if _, err := client.CoordinationV1().Leases(namespace).Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "filter as the leader", ask("/filter", pod), `"NodeNames":["node"]`)
	await(t, "bind", ask("/bind", `{"PodNamespace":"team","PodName":"web","PodUID":"1","Node":"node"}`), "the outcome is not known")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the process ends with %v", err)
	}
	done <- nil
	mu.Lock()
	defer mu.Unlock()
	if left := released.Sub(sent); released.IsZero() || left < binder.BindTimeout-time.Second {
		t.Errorf("the Lease was released %v after a binding that may land for %v", left, binder.BindTimeout)
	}
	for _, a := range client.Actions() {
		if a.GetResource().Resource == "leases" && a.GetNamespace() != namespace {
			t.Errorf("the leader asks who leads: %v", a)
		}
	}
}

// binding is a fake client that sends bindings through a real REST client, because the fake client cannot
// send them.
type binding struct {
	*fake.Clientset
	client rest.Interface
}

func (b binding) CoreV1() corev1.CoreV1Interface { return bindingCore{b.Clientset.CoreV1(), b.client} }

type bindingCore struct {
	corev1.CoreV1Interface
	client rest.Interface
}

func (b bindingCore) RESTClient() rest.Interface { return b.client }

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// await waits until get returns a text that contains want.
func await(t *testing.T, what string, get func() string, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if got = get(); strings.Contains(got, want) {
			return
		}
	}
	t.Fatalf("%s: %q, want %q", what, got, want)
}
