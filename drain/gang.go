package drain

import corev1 "k8s.io/api/core/v1"

// GangLabel on a pod, or on its template, names the gang that it belongs to, whatever else it
// carries. An empty value says that it belongs to none.
const GangLabel = "spot-handler/gang"

// gangLabels are those by which the pods of others belong together, the nearest first. All of
// them are labels of the pods, with which the rest of a gang can be listed.
var gangLabels = []string{
	// A JobSet starts all of its Jobs again when one fails. TrainJobs of Kubeflow are JobSets.
	// https://github.com/kubernetes-sigs/jobset/blob/main/api/jobset/v1alpha2/jobset_types.go
	"jobset.sigs.k8s.io/jobset-name",
	// One replica of a LeaderWorkerSet, a leader with its workers.
	// https://github.com/kubernetes-sigs/lws/blob/main/api/leaderworkerset/v1/leaderworkerset_types.go
	"leaderworkerset.sigs.k8s.io/group-key",
	// PyTorchJobs, TFJobs, MPIJobs and the others of Kubeflow's training operator.
	// https://github.com/kubeflow/trainer/blob/release-1.9/pkg/apis/kubeflow.org/v1/common_types.go
	"training.kubeflow.org/job-name",
	// The head and the workers of a Ray cluster.
	// https://github.com/ray-project/kuberay/blob/master/ray-operator/controllers/ray/utils/constant.go
	"ray.io/cluster",
	// Volcano's own Jobs. Its annotation scheduling.k8s.io/group-name says nothing: every pod has
	// it that Volcano schedules, those of Deployments too.
	// https://github.com/volcano-sh/volcano/blob/master/pkg/controllers/job/job_controller_util.go
	"volcano.sh/job-name",
	// Kueue's groups of plain pods.
	// https://github.com/kubernetes-sigs/kueue/blob/main/pkg/controller/jobs/pod/constants/constants.go
	"kueue.x-k8s.io/pod-group-name",
}

// podGroup stands for the field of Kubernetes 1.36 that names a pod's PodGroup.
// https://kubernetes.io/docs/concepts/workloads/pods/scheduling-group/
const podGroup = "spec.schedulingGroup.podGroupName"

// Gang is a set of pods that live and die together; the zero value is none. A pod can claim to
// belong to any gang of its own namespace, and to no other's.
type Gang struct{ Namespace, By, Name string }

// GangOf is the gang that the pod belongs to, or none.
func GangOf(pod *corev1.Pod) Gang {
	if name, own := pod.Labels[GangLabel]; own {
		return newGang(pod, GangLabel, name)
	}
	for _, label := range gangLabels {
		if name := pod.Labels[label]; name != "" {
			return newGang(pod, label, name)
		}
	}
	if group := pod.Spec.SchedulingGroup; group != nil && group.PodGroupName != nil {
		return newGang(pod, podGroup, *group.PodGroupName)
	}
	return Gang{}
}

func newGang(pod *corev1.Pod, by, name string) Gang {
	if name == "" {
		return Gang{}
	}
	return Gang{Namespace: pod.Namespace, By: by, Name: name}
}

// Selector is the label selector of the gang's pods. It is empty for a PodGroup, whose pods can
// be told apart by no selector of the API.
func (g Gang) Selector() string {
	if g.By == podGroup {
		return ""
	}
	return g.By + "=" + g.Name
}
