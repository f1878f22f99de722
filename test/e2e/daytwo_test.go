package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/stack"
)

// What an upgrade would break of pods that run is refused, with their names.
// What it does not touch is taken, and taken back, while they run.
func TestUpgradesWhilePodsRun(t *testing.T) {
	e := setup(t)
	upgrade := func(set string) error {
		_, err := suite.stack.Helm(e.ctx, e.cluster, "upgrade", stack.Release, suite.stack.Chart(), "--namespace", stack.Namespace,
			"--reset-then-reuse-values", "--set", set, "--wait", "--timeout", "1m")
		return err
	}
	e.create(e.pod("holds", 2, func(pod *v1.Pod) {
		pod.Spec.Containers[0].Resources.Limits["gpumem.dev/gpu-core"] = *resource.NewQuantity(10, resource.DecimalSI)
	}))
	before := e.running("holds")
	e.agree("holds", "main")
	untouched := func() {
		t.Helper()
		after := e.running("holds")
		if diff := cmp.Diff(containerIDs(before), containerIDs(after)); diff != "" {
			t.Errorf("containers (-before +after):\n%s", diff)
		}
		if diff := cmp.Diff(before.Annotations[assignment], after.Annotations[assignment]); diff != "" {
			t.Errorf("assignment (-before +after):\n%s", diff)
		}
	}
	for set, change := range map[string]string{
		"unitMiB=512":                      "unitMiB changes from 1024 to 512, and pods that ask for gpumem.dev/gpu-mem are there (1: " + e.namespace + "/holds)",
		"resourceDomain=other.example.com": "resourceDomain changes from gpumem.dev to other.example.com, and pods that ask for gpumem.dev/gpu-mem are there",
		"cores=false":                      "cores is turned off, and pods that ask for gpumem.dev/gpu-core are there",
	} {
		if err := upgrade(set); err == nil || !strings.Contains(err.Error(), change) {
			t.Errorf("%s: %v, want it refused with %q", set, err, change)
		}
	}
	untouched()

	if err := upgrade("policy=spread"); err != nil {
		t.Fatal(err)
	}
	// Of the GPUs of a node, the empty one now.
	e.create(e.pod("beside", 2, onNode(before.Spec.NodeName)))
	e.running("beside")
	if first, second := e.assigned(before), e.agree("beside", "main"); cmp.Equal(first, second) {
		t.Errorf("with the policy spread, both pods are on %v", first)
	}
	untouched()
	if _, err := suite.stack.Helm(e.ctx, e.cluster, "rollback", stack.Release, "--namespace", stack.Namespace, "--wait", "--timeout", "1m"); err != nil {
		t.Fatal(err)
	}
	untouched()
	// Helm is content when a DaemonSet lacks as many pods as an update may take.
	for _, part := range []string{"deployment/gpumem-scheduler", "daemonset/gpumem-device-plugin"} {
		if _, err := suite.stack.Kubectl(e.ctx, e.cluster, "rollout", "status", part, "--namespace", stack.Namespace, "--timeout=1m"); err != nil {
			t.Error(err)
		}
	}
}

// uninstall takes a release away, and checks that nothing of it is left in the
// cluster and on the nodes.
func (e *env) uninstall(ctx context.Context, release, namespace, domain string) {
	e.Helper()
	if _, err := suite.stack.Helm(ctx, e.cluster, "uninstall", release, "--namespace", namespace, "--wait"); err != nil {
		e.Error(err)
	}
	e.nothingIsLeft(ctx, release, namespace, domain)
}

// nothingIsLeft checks that of a release that has been taken away, and removes its namespace.
func (e *env) nothingIsLeft(ctx context.Context, release, namespace, domain string) {
	e.Helper()
	if _, err := suite.stack.Kubectl(ctx, e.cluster, "wait", "pods", "--namespace", namespace, "--all", "--for=delete", "--timeout=1m"); err != nil {
		e.Errorf("its pods do not end: %v", err)
	}
	kinds := "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,crds,priorityclasses"
	if left, err := suite.stack.Kubectl(ctx, e.cluster, "get", kinds, "--selector=app.kubernetes.io/instance="+release, "--output=name"); err != nil || left != "" {
		e.Errorf("left of the cluster's objects: %v\n%s", err, left)
	}
	kinds = "all,configmaps,secrets,serviceaccounts,roles,rolebindings,leases,poddisruptionbudgets,networkpolicies"
	left, err := suite.stack.Kubectl(ctx, e.cluster, "get", kinds, "--namespace", namespace, "--output=name")
	for _, own := range []string{"configmap/kube-root-ca.crt\n", "serviceaccount/default\n"} { // of every namespace
		left = strings.Replace(left, own, "", 1)
	}
	if err != nil || left != "" {
		e.Errorf("left in the namespace: %v\n%s", err, left)
	}
	nodes, err := e.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		e.Error(err)
	}
	for _, node := range nodes.Items {
		for key, value := range node.Annotations {
			if strings.HasPrefix(key, domain+"/") {
				e.Errorf("node %s still has %s=%s", node.Name, key, value)
			}
		}
		for key := range node.Labels {
			if strings.HasPrefix(key, domain+"/") {
				e.Errorf("node %s still has the label %s", node.Name, key)
			}
		}
		sockets, err := filepath.Glob(filepath.Join(e.cluster.NodeDir(node.Name), "lib", "kubelet", "device-plugins", "*"))
		if err != nil {
			e.Error(err)
		}
		for _, socket := range sockets {
			// The release that the tests share has its own there.
			if strings.Contains(filepath.Base(socket), domain) {
				info, err := os.Stat(socket)
				e.Errorf("node %s still has %s: %v, %v", node.Name, socket, info, err)
			}
		}
	}
	if _, err := suite.stack.Kubectl(ctx, e.cluster, "delete", "namespace", namespace, "--timeout=1m"); err != nil {
		e.Error(fmt.Errorf("delete the namespace: %w", err))
	}
}
