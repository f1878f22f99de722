package attack

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/test/stack"
)

// otherNode is one that the attacker has not taken.
const otherNode = "node2"

// nodes are attacks by somebody who has taken a node, with the token of its device plugin.
func nodes() []attempt {
	const elsewhere, others, more = "of node node1 may not change", "may change its own annotations and no others", "may change annotations, conditions and its own labels and nothing else"
	by := func(do func(context.Context, *field, account) error, want string) func(context.Context, *field) (string, error) {
		return func(ctx context.Context, f *field) (string, error) {
			plugin, err := f.plugin(ctx)
			if err != nil {
				return "", err
			}
			return failsWith(do(ctx, f, plugin), want)
		}
	}
	onNode := func(name, body, want string, subresources ...string) func(context.Context, *field) (string, error) {
		return by(func(ctx context.Context, _ *field, plugin account) error {
			_, err := plugin.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)
			return err
		}, want)
	}
	onPod := func(key, value, want string, subresources ...string) func(context.Context, *field) (string, error) {
		return by(func(ctx context.Context, f *field, plugin account) error {
			return patch(ctx, plugin, f.mine+"/mine", domain+key, value, subresources...)
		}, want)
	}
	return []attempt{
		{"with a plugin's token, write the inventory of another node", onNode(otherNode, `{"metadata":{"annotations":{"gpumem.dev/inventory":"{}"}}}`, elsewhere)},
		{"with it, undo a cordon of its own node", onNode(node, `{"metadata":{"annotations":{"gpumem.dev/cordoned-gpus":"GPU-1"}}}`, others)},
		{"with it, label its own node", onNode(node, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, more)},
		{"with it, call its own node unready", onNode(node, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "its own condition of its node's status", "status")},
		{"with it, write the assignment of a pod of another node", pluginElsewhere},
		{"with it, change what a pod of its node asks for", onPod("gpu-count", "2", others)},
		{"with it, write a pod's status", onPod("assignment", "{}", "cannot patch resource", "status")},
		{"with a token of the plugin's account that names no node, write an assignment", unbound},
	}
}

// plugin returns the account of the node's plugin, with a token as the kubelet gets it.
func (f *field) plugin(ctx context.Context) (account, error) {
	pod, err := f.podOf(ctx, "device-plugin", node)
	if err != nil {
		return account{}, err
	}
	plugin, err := f.accountOf(ctx, stack.Namespace, pod.Spec.ServiceAccountName, &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID})
	if err != nil {
		return account{}, err
	}
	// What it may: its own annotation of a pod of its node.
	if err := patch(ctx, plugin, f.mine+"/mine", domain+"gpu-index", "control"); err != nil {
		return account{}, fmt.Errorf("the plugin's own write fails: %w", err)
	}
	return plugin, nil
}

func pluginElsewhere(ctx context.Context, f *field) (string, error) {
	plugin, err := f.plugin(ctx)
	if err != nil {
		return "", err
	}
	pod := f.pod("far", 1, onNode(otherNode), func(pod *v1.Pod) { pod.Namespace = f.hers })
	if err := f.start(ctx, f.admin, pod); err != nil {
		return "", err
	}
	said, err := failsWith(patch(ctx, plugin, f.hers+"/far", domain+"assignment", "{}"), "of node node1 may not change")
	if err != nil {
		return "", err
	}
	return said, f.remove(ctx, f.hers, "far")
}

func unbound(ctx context.Context, f *field) (string, error) {
	token, err := f.accountOf(ctx, stack.Namespace, "gpumem-device-plugin", nil)
	if err != nil {
		return "", err
	}
	return failsWith(patch(ctx, token, f.mine+"/mine", domain+"assignment", "{}"), "its token names no node")
}
