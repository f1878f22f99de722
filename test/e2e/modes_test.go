package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The release in the mode that the one of the other tests does not have: gpumem-scheduler,
// or kube-scheduler with the extender. It works in a domain of its own.
const (
	other          = "other"
	otherNamespace = "other-system"
	otherDomain    = "other.example.com"
	otherScheduler = "other-gpumem-scheduler"
)

// What users see is the same in the other mode: where pods go, why one waits, whom an
// important one evicts, what the command and the page say, and that a leader may die.
func TestTheOtherModeOfTheScheduler(t *testing.T) {
	e := setup(t)
	e.domain = otherDomain
	e.Cleanup(func() { // after the check that setup registers
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
		e.uninstall(ctx, other, otherNamespace, otherDomain)
	})
	if _, err := suite.stack.InstallAs(e.ctx, e.cluster, other, otherNamespace, "scheduler.mode="+suite.stack.OtherMode(),
		"scheduler.replicas=2", "scheduler.schedulerName="+otherScheduler, "resourceDomain="+otherDomain, "extender.page=true"); err != nil {
		t.Fatal(err)
	}
	installed := time.Now()

	e.create(e.ofOther("first", 3))
	on := e.placed("first")
	e.create(e.ofOther("packed", 3))
	if got := e.placed("packed"); got[0] != on[0] {
		t.Errorf("the second pod is on %s, want it beside the first on %s", got, on)
	}
	e.create(e.ofOther("waits", a100+1))
	e.pending("waits", "needs 80 GiB on one GPU; the largest that qualifies here has 79 GiB")
	e.explains("waits", "needs 80 GiB on one GPU", "filter")
	e.explains("packed", "is on a node that scheduler "+otherScheduler+" chose", "bound "+e.get("packed").Spec.NodeName)
	e.otherAnswers()
	e.delete("waits", 0)
	e.delete("first", 0)
	e.delete("packed", 0)
	e.gone("first")
	e.gone("packed")

	t.Run("an important pod evicts from one GPU", func(*testing.T) { e.testOtherEvicts() })
	t.Run("another leads when the leader dies", func(*testing.T) { e.testOtherLeads() })
	e.nothingDenied(otherNamespace, installed)
}

// ofOther is pod for the release in the other mode.
func (e *env) ofOther(name string, units int64, more ...func(*v1.Pod)) *v1.Pod {
	others := func(pod *v1.Pod) { pod.Spec.SchedulerName = otherScheduler }
	return e.pod(name, 0, append([]func(*v1.Pod){asking(otherDomain+"/gpu-mem", units), others}, more...)...)
}

// explains waits until "kubectl inspect gpumem explain" says these words of a pod of the other release.
func (e *env) explains(name string, words ...string) {
	e.Helper()
	e.eventually(fmt.Sprintf("explain says %q of %s", words, name), func() (bool, string) {
		out, err := suite.stack.Inspect(e.ctx, e.cluster, "explain", "-n", e.namespace, name, "--resource-domain", e.domain, "--gpumem-namespace", otherNamespace)
		for _, word := range words {
			if err != nil || !strings.Contains(out, word) {
				return false, fmt.Sprint(err, out)
			}
		}
		return true, ""
	})
}

// otherAnswers checks the metrics and the page of a replica.
func (e *env) otherAnswers() {
	e.Helper()
	for _, what := range []struct {
		port       int
		path, want string
	}{
		{8011, "/metrics", "gpumem_extender_gpu_allocated_bytes{"},
		{8013, "/", "<!doctype html>"},
	} {
		address := e.forward(otherNamespace, "deployment/"+otherScheduler, what.port)
		e.eventually(what.path+" is served", func() (bool, string) {
			text, err := get(e.ctx, "http://"+address+what.path)
			return err == nil && strings.Contains(text, what.want), fmt.Sprint(err, text)
		})
	}
}

func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// By the sum of node1, one pod must go, whichever; but only without low has a GPU room.
func (e *env) testOtherEvicts() {
	e.Helper()
	at := onNode("node1")
	e.create(e.ofOther("mid", 9, at, e.ofPriority(20)))
	mid := e.running("mid")
	e.create(e.ofOther("low", 8, at, e.ofPriority(10)))
	e.running("low")
	e.create(e.ofOther("vip", t4, at, e.ofPriority(100)))
	e.placed("vip")
	e.gone("low")
	e.untouched(mid)
	e.delete("vip", 0)
	e.gone("vip")
}

func (e *env) testOtherLeads() {
	e.Helper()
	before := e.holder()
	name, _, _ := strings.Cut(before, "_")
	pod, err := e.client.CoreV1().Pods(otherNamespace).Get(e.ctx, name, metav1.GetOptions{})
	if err != nil {
		e.Fatal(err)
	}
	processes, err := e.cluster.ContainerProcesses("gpumem-scheduler", "kube-scheduler", "gpumem-extender")
	if err != nil {
		e.Fatal(err)
	}
	killed := 0
	for _, p := range processes {
		if p.Pod == pod.UID {
			if err := p.Signal(syscall.SIGKILL); err != nil {
				e.Fatal(err)
			}
			killed++
		}
	}
	if killed == 0 {
		e.Fatalf("no process of the leader %s runs", before)
	}
	e.create(e.ofOther("after", 5, onNode("node1")))
	e.placed("after")
	if after := e.holder(); after == before {
		e.Errorf("%s leads as before", after)
	}
}

// holder returns who holds the Lease of the other release.
func (e *env) holder() string {
	e.Helper()
	lease, err := e.client.CoordinationV1().Leases(otherNamespace).Get(e.ctx, otherScheduler, metav1.GetOptions{})
	if err != nil {
		e.Fatal(err)
	}
	if lease.Spec.HolderIdentity == nil {
		e.Fatal("no one has the Lease")
	}
	return *lease.Spec.HolderIdentity
}
