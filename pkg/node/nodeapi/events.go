package nodeapi

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/event"
)

// maxNote is the API server's maximum length of a note, in bytes.
const maxNote = 1024

// Events records events on pods and on the node. It never waits for the API server.
type Events struct {
	recorder events.EventRecorder
	node     string
}

// NewEvents returns a recorder that sends events until the context is done.
func NewEvents(ctx context.Context, client kubernetes.Interface, component, node string) (*Events, error) {
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("record events: %w", err)
	}
	context.AfterFunc(ctx, broadcaster.Shutdown)
	return &Events{recorder: broadcaster.NewRecorder(scheme.Scheme, component), node: node}, nil
}

// Pod records an event on a pod.
func (e *Events) Pod(ref placement.PodRef, row event.OnPod, note string) {
	e.record(&v1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: ref.Namespace, Name: ref.Name, UID: types.UID(ref.UID),
	}, row.Row(), note)
}

// Node records an event on the node.
func (e *Events) Node(row event.OnNode, note string) {
	// In Events on a node, the kubelet sets the UID to the node's name, and kubectl searches for that UID.
	e.record(&v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.node, UID: types.UID(e.node)}, row.Row(), note)
}

func (e *Events) record(regarding runtime.Object, row event.Row, note string) {
	e.recorder.Eventf(regarding, nil, row.Type, row.Reason, action(note), "%s", strings.ToValidUTF8(note[:min(len(note), maxNote)], ""))
}

// action returns an action that is unique to the note. The recorder merges events that differ only in their
// note into one series, and keeps the first note.
func action(note string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(note)) // a hash never fails
	return fmt.Sprintf("AllocateGPUMemory-%08x", sum.Sum32())
}
