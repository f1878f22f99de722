package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The release whose extender serves the cluster's own kube-scheduler. It works
// beside the one that the other tests use, in a domain of its own.
const (
	served          = "served"
	servedNamespace = "served-system"
	servedDomain    = "served.example.com"
	servedExtender  = "served-gpumem-extender"
	servedAddress   = "10.96.0.80" // as config/scheduler has it
)

// TestTheClustersOwnSchedulerAsks goes the way of docs/extender.md.
func TestTheClustersOwnSchedulerAsks(t *testing.T) {
	e := setup(t)
	e.domain = servedDomain
	e.installServed()
	installed := time.Now()
	credentials := e.schedulerCredentials()
	e.startServedScheduler(credentials)

	e.create(e.ofServed("first", 2))
	if uuids := e.placed("first"); len(uuids) != 1 {
		t.Errorf("it is on %v, want one GPU", uuids)
	}
	t.Run("the leader alone is ready", func(t *testing.T) {
		pods := e.servedPods()
		ready := slices.DeleteFunc(slices.Clone(pods), func(pod v1.Pod) bool { return !isReady(pod) })
		if len(pods) != 2 || len(ready) != 1 {
			t.Errorf("%d of %d pods are ready, want 1 of 2", len(ready), len(pods))
		}
	})
	t.Run("helm test", func(t *testing.T) {
		if out, err := suite.stack.Helm(e.ctx, e.cluster, "test", served, "--namespace", servedNamespace, "--timeout", "1m"); err != nil || !strings.Contains(out, "Succeeded") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("nobody else is served", e.testWhoIsServed(credentials))
	t.Run("another leads when the leader goes", func(t *testing.T) {
		before := e.leader()
		grace := int64(3)
		if err := e.client.CoreV1().Pods(servedNamespace).Delete(e.ctx, before, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
			t.Fatal(err)
		}
		e.create(e.ofServed("second", 2))
		e.placed("second")
		// The one that goes may have placed it: it is asked while no other is ready.
		e.eventually("another leads", func() (bool, string) {
			after := e.leader()
			return after != "" && after != before, after
		})
	})
	t.Run("certificates", e.testServedCertificates(credentials))
	e.nothingDenied(servedNamespace, installed)
	t.Run("another unit, when no pod holds any", func(*testing.T) {
		for _, name := range []string{"first", "second"} {
			e.delete(name, 0)
			e.gone(name)
		}
		e.upgradeServed("unitMiB=512")
		e.eventually("node1 offers twice as many units", func() (bool, string) {
			node, err := e.client.CoreV1().Nodes().Get(e.ctx, "node1", metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			got, before := node.Status.Allocatable[servedDomain+"/gpu-mem"], node.Status.Allocatable[gpuMem]
			return got.Value() >= 2*before.Value(), got.String()
		})
	})
}

// installServed installs the chart as for a kube-scheduler that is there, and
// takes it away at the end of the test.
func (e *env) installServed(set ...string) {
	e.Helper()
	e.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
		e.uninstall(ctx, served, servedNamespace, servedDomain)
	})
	e.upgradeServed(set...)
	e.eventually("a replica leads", func() (bool, string) { return e.leader() != "", "none is ready" })
	e.eventually("the nodes offer GPU memory", func() (bool, string) {
		for _, name := range withGPUs {
			node, err := e.client.CoreV1().Nodes().Get(e.ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			if q := node.Status.Allocatable[servedDomain+"/gpu-mem"]; q.IsZero() {
				return false, node.Name
			}
		}
		return true, ""
	})
}

func (e *env) upgradeServed(set ...string) {
	e.Helper()
	if _, err := suite.stack.Helm(e.ctx, e.cluster, "upgrade", "--install", served, suite.stack.Chart(),
		"--namespace", servedNamespace, "--create-namespace", "--values", filepath.Join(suite.stack.Chart(), "ci", "demo-values.yaml"),
		"--set", strings.Join(append(set, "scheduler.mode=existing", "scheduler.replicas=2", "resourceDomain="+servedDomain, "extender.service.clusterIP="+servedAddress), ",")); err != nil {
		e.Fatal(err)
	}
}

// schedulerCredentials writes what kube-scheduler is given to a folder.
func (e *env) schedulerCredentials() (dir string) {
	e.Helper()
	dir = e.TempDir()
	secret, err := e.client.CoreV1().Secrets(servedNamespace).Get(e.ctx, servedExtender+"-client", metav1.GetOptions{})
	if err != nil {
		e.Fatal(err)
	}
	for _, file := range []string{"ca.crt", "tls.crt", "tls.key"} {
		if err := os.WriteFile(filepath.Join(dir, file), secret.Data[file], 0o600); err != nil {
			e.Fatal(err)
		}
	}
	return dir
}

// startServedScheduler puts a kube-scheduler with the configuration for kubeadm
// into the place of the cluster's own, until the test ends.
func (e *env) startServedScheduler(credentials string) {
	e.Helper()
	text, err := os.ReadFile(suite.stack.SchedulerFile("kubeadm/kube-scheduler.yaml"))
	if err != nil {
		e.Fatal(err)
	}
	kubeconfig := filepath.Join(e.cluster.Dir(), "scheduler.kubeconfig")
	config := strings.NewReplacer(
		"/etc/kubernetes/scheduler.conf", kubeconfig, "/etc/kubernetes/gpumem", credentials,
		"gpumem-extender.gpumem-system", servedExtender+"."+servedNamespace, "gpumem.dev/", servedDomain+"/",
	).Replace(string(text))
	file := filepath.Join(e.TempDir(), "kube-scheduler.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		e.Fatal(err)
	}
	if err := e.cluster.Terminate(e.ctx, "scheduler"); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		if err := e.cluster.StartProcess("scheduler"); err != nil {
			e.Error(err)
		}
	})
	program, err := e.cluster.Scheduler(e.ctx)
	if err != nil {
		e.Fatal(err)
	}
	e.runBesideControlPlane("kube-scheduler", exec.Command(program, "--config="+file, "--bind-address=127.0.0.1",
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig))
}

// runBesideControlPlane runs a program in the control plane's network until the
// test ends, and shows its log if the test has failed.
func (e *env) runBesideControlPlane(name string, cmd *exec.Cmd) {
	e.Helper()
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := e.cluster.StartBesideControlPlane(cmd); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			e.Error(err)
		}
		err := cmd.Wait() // of a scheduler that no longer leads, with an error
		if e.Failed() {
			e.Logf("%s: %v\n%s", name, err, log.String())
		}
	})
}

// ofServed is a pod that names no scheduler.
func (e *env) ofServed(name string, units int64) *v1.Pod {
	return e.pod(name, 0, asking(servedDomain+"/gpu-mem", units), func(pod *v1.Pod) { pod.Spec.SchedulerName = "" })
}

// placed waits until a pod runs, and checks that it is on what was assigned.
func (e *env) placed(name string) []string {
	e.Helper()
	e.running(name)
	return e.agree(name, "main")
}

func (e *env) servedPods() []v1.Pod {
	e.Helper()
	list, err := e.client.CoreV1().Pods(servedNamespace).List(e.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=extender"})
	if err != nil {
		e.Fatal(err)
	}
	return list.Items
}

func isReady(pod v1.Pod) bool { return pod.DeletionTimestamp == nil && ready(&pod) }

// leader returns the pod that the Service leads to, or an empty string.
func (e *env) leader() string {
	e.Helper()
	pods := e.servedPods()
	if i := slices.IndexFunc(pods, isReady); i >= 0 {
		return pods[i].Name
	}
	return ""
}

// reach asks the extender's Service for its version, from the control plane.
func (e *env) reach(flags ...string) error {
	kubectl, err := e.cluster.Kubectl()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(e.ctx, patience/3)
	defer cancel()
	cmd := exec.CommandContext(ctx, kubectl, append(flags, "--kubeconfig", os.DevNull, "get", "--raw", "/version")...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := e.cluster.StartBesideControlPlane(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, output.String())
	}
	if !strings.Contains(output.String(), `"goVersion"`) {
		return fmt.Errorf("it answers %s", output.String())
	}
	return nil
}

// as returns flags to reach the extender with the credentials of a folder.
func as(ca, certificate, key string) []string {
	flags := []string{"--server=https://" + servedAddress, "--tls-server-name=" + servedExtender + "." + servedNamespace + ".svc", "--certificate-authority=" + ca}
	if certificate != "" {
		flags = append(flags, "--client-certificate="+certificate, "--client-key="+key)
	}
	return flags
}

func fromFolder(dir string) []string {
	return as(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
}

// Who has not the certificate that was made for kube-scheduler is sent away
// before a word is heard, whatever else it may do in the cluster.
func (e *env) testWhoIsServed(credentials string) func(*testing.T) {
	return func(t *testing.T) {
		if err := e.reach(fromFolder(credentials)...); err != nil {
			t.Errorf("kube-scheduler is not: %v", err)
		}
		ca := filepath.Join(credentials, "ca.crt")
		pki := filepath.Join(e.cluster.Dir(), "pki")
		server, err := e.client.CoreV1().Secrets(servedNamespace).Get(e.ctx, servedExtender+"-tls", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		own := t.TempDir()
		for _, file := range []string{"tls.crt", "tls.key"} {
			if err := os.WriteFile(filepath.Join(own, file), server.Data[file], 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for name, flags := range map[string][]string{
			"no certificate":                   as(ca, "", ""),
			"the API server's certificate":     as(ca, filepath.Join(pki, "apiserver.crt"), filepath.Join(pki, "apiserver.key")),
			"another one of the authority":     as(ca, filepath.Join(own, "tls.crt"), filepath.Join(own, "tls.key")),
			"no TLS":                           {"--server=http://" + servedAddress + ":443"},
			"none, at the port behind Service": {"--server=http://" + e.servedPodIP() + ":8010"},
		} {
			if err := e.reach(flags...); err == nil || strings.Contains(err.Error(), "i/o timeout") {
				t.Errorf("with %s: %v, want to be sent away", name, err)
			}
		}
	}
}

func (e *env) servedPodIP() string {
	e.Helper()
	for _, pod := range e.servedPods() {
		if isReady(pod) {
			return pod.Status.PodIP
		}
	}
	e.Fatal("no replica leads")
	return ""
}

// An upgrade leaves certificates as they are until half of their time is over.
// New ones are taken up by the pods that run.
func (e *env) testServedCertificates(before string) func(*testing.T) {
	return func(t *testing.T) {
		same := func(a, b, file string) bool {
			x, err := os.ReadFile(filepath.Join(a, file))
			if err != nil {
				t.Fatal(err)
			}
			y, err := os.ReadFile(filepath.Join(b, file))
			if err != nil {
				t.Fatal(err)
			}
			return bytes.Equal(x, y)
		}
		e.upgradeServed()
		again := e.schedulerCredentials()
		if !same(before, again, "tls.crt") || !same(before, again, "ca.crt") {
			t.Error("an upgrade has made others")
		}
		kubectl := func(args ...string) {
			t.Helper()
			if _, err := suite.stack.Kubectl(e.ctx, e.cluster, append([]string{"--namespace", servedNamespace}, args...)...); err != nil {
				t.Fatal(err)
			}
		}
		kubectl("annotate", "--overwrite", "secret", servedExtender+"-client", servedExtender+"-tls", "gpumem.dev/issued=1")
		e.upgradeServed()
		renewed := e.schedulerCredentials()
		if same(before, renewed, "tls.crt") || !same(before, renewed, "ca.crt") {
			t.Error("of old ones, an upgrade has not made new ones by the same authority")
		}
		if err := e.reach(fromFolder(renewed)...); err != nil {
			t.Errorf("with the new one: %v", err)
		}

		kubectl("delete", "secret", servedExtender+"-ca")
		e.upgradeServed()
		other := e.schedulerCredentials()
		// The kubelet looks at a pod that has changed at once, and else each minute.
		kubectl("annotate", "--overwrite", "pods", "--selector=app.kubernetes.io/component=extender", "example.com/touched=now")
		e.eventually("the extender shows a certificate of the new authority", func() (bool, string) {
			err := e.reach(fromFolder(other)...)
			return err == nil, fmt.Sprint(err)
		})
		if err := e.reach(as(filepath.Join(other, "ca.crt"), filepath.Join(before, "tls.crt"), filepath.Join(before, "tls.key"))...); err == nil {
			t.Error("the certificate of the authority before is still served")
		}
		for _, pod := range e.servedPods() {
			if n := pod.Status.ContainerStatuses[0].RestartCount; n > 0 {
				t.Errorf("%s has restarted %d times", pod.Name, n)
			}
		}
	}
}
