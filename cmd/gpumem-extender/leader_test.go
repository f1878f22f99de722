package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zaptest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func elect(t *testing.T, client kubernetes.Interface, identity string, drain func()) *election {
	t.Helper()
	e, err := newElection(client, &options{leaseNamespace: "gpumem-system", leaseName: "gpumem-extender", identity: identity}, zaptest.NewLogger(t), drain)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// One replica leads, and the others name it. When it exits, another replica leads at once.
func TestOneReplicaLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		replica := func(name string) (*election, context.CancelFunc, chan error) {
			e := elect(t, client, name, func() {})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- e.Run(ctx) }()
			time.Sleep(2 * retryPeriod)
			synctest.Wait()
			return e, cancel, done
		}
		a, stopA, doneA := replica("a")
		b, stopB, doneB := replica("b")
		if a.Missing() != "" || !strings.HasPrefix(b.Missing(), "replica a_") {
			t.Errorf("a: %q, b: %q", a.Missing(), b.Missing())
		}
		stopA()
		if err := <-doneA; err != nil {
			t.Errorf("a ends with %v", err)
		}
		time.Sleep(3 * retryPeriod) // replicas retry within 2.2 periods, and need not wait for a released Lease
		synctest.Wait()
		if a.Missing() == "" || b.Missing() != "" {
			t.Errorf("a: %q, b: %q", a.Missing(), b.Missing())
		}
		stopB()
		if err := <-doneB; err != nil {
			t.Errorf("b ends with %v", err)
		}
	})
}

// A replica that cannot renew its Lease exits, because another replica may lead already.
func TestAReplicaThatLosesItsLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		client := fake.NewClientset()
		client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return away.Load(), nil, apierrors.NewInternalError(errors.New("the API server is away"))
		})
		e := elect(t, client, "a", func() {})
		if got := e.Missing(); got != "no replica leads yet" {
			t.Errorf("before the election: %q", got)
		}
		done := make(chan error, 1)
		go func() { done <- e.Run(t.Context()) }()
		time.Sleep(retryPeriod)
		synctest.Wait()
		if e.Missing() != "" {
			t.Fatalf("does not lead: %s", e.Missing())
		}
		away.Store(true)
		if err := <-done; !errors.Is(err, errLostLease) {
			t.Errorf("ends with %v", err)
		}
		if e.Missing() == "" {
			t.Error("says that it leads")
		}
		lease, err := client.CoordinationV1().Leases("gpumem-system").Get(t.Context(), "gpumem-extender", metav1.GetOptions{})
		if err != nil || !strings.HasPrefix(*lease.Spec.HolderIdentity, "a_") {
			t.Errorf("lease %+v, %v", lease, err)
		}
	})
}

// A container is killed and restarts in its pod, with the same pod name. A binding that the killed process
// sent may still land, so the new process waits until the Lease has expired.
func TestARestartedReplicaWaitsForTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		ctx, cancel := context.WithCancel(t.Context())
		start := func() *election {
			e := elect(t, client, "pod", func() {})
			go func() { _ = e.Run(ctx) }()
			time.Sleep(2 * retryPeriod)
			synctest.Wait()
			return e
		}
		if killed := start(); killed.Missing() != "" {
			t.Errorf("the first process does not lead: %s", killed.Missing())
		}
		if restarted := start(); restarted.Missing() == "" {
			t.Error("the restarted process leads at once")
		}
		cancel()
		synctest.Wait()
	})
}
