package asgemu_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"spot-handler/e2e/asgemu"
	"spot-handler/e2e/foreign"
)

// foreignDeviations are the cases in which the foreign emulator, moto 5.2.1 of PyPI, answers differently from AWS.
var foreignDeviations = map[string]string{
	"50 instances at most are described by one call":      "describes any number",
	"50 groups at most are described by one call":         "describes any number",
	"an instance is detached once":                        "ignores instances that are not in the group",
	"one instance of another group spoils the whole call": "ignores instances that are not in the group",
	"20 instances at most are detached by one call":       "detaches any number",
	"a group that is not there has nothing to detach":     "answers with a page of its web server",
}

// startForeign runs an AWS emulator that this project did not write and returns its endpoint. It needs a python3
// that has moto with its server, which CI has no way to install: neither Debian, npm nor the Go module proxy has
// an emulator that detaches instances.
func startForeign(t *testing.T) string {
	t.Helper()
	if err := exec.Command("python3", "-c", "import moto.server").Run(); err != nil {
		t.Skipf("no foreign emulator to compare with: moto is not installed: %v", err)
	}
	line := foreign.Start(t, exec.Command("python3", filepath.Join("testdata", "foreign", "serve.py")))
	endpoint, version, _ := strings.Cut(line, " ")
	t.Logf("moto %s", version)
	return endpoint
}

// prepareForeign makes groups and instances the way anybody does in AWS.
func (s *service) prepareForeign(t *testing.T) {
	t.Helper()
	images, err := s.ec2.DescribeImages(t.Context(), &ec2.DescribeImagesInput{})
	if err != nil || len(images.Images) == 0 {
		t.Fatalf("describe images: %v", err)
	}
	image := images.Images[0].ImageId
	s.create = func(t *testing.T, name string, n int) []string {
		t.Helper()
		_, err := s.groups.CreateLaunchConfiguration(t.Context(), &autoscaling.CreateLaunchConfigurationInput{
			LaunchConfigurationName: &name, ImageId: image, InstanceType: aws.String("m5.large"),
		})
		if err != nil {
			t.Fatal(err)
		}
		size := aws.Int32(int32(n))
		_, err = s.groups.CreateAutoScalingGroup(t.Context(), &autoscaling.CreateAutoScalingGroupInput{
			AutoScalingGroupName: &name, LaunchConfigurationName: &name, AvailabilityZones: []string{region + "a"},
			MinSize: aws.Int32(0), MaxSize: aws.Int32(int32(2 * n)), DesiredCapacity: size,
		})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, i := range s.group(t, name).Instances {
			ids = append(ids, *i.InstanceId)
		}
		return ids
	}
	s.alone = func(t *testing.T) string {
		t.Helper()
		out, err := s.ec2.RunInstances(t.Context(), &ec2.RunInstancesInput{
			ImageId: image, MinCount: aws.Int32(1), MaxCount: aws.Int32(1), InstanceType: types.InstanceTypeM5Large,
		})
		if err != nil {
			t.Fatal(err)
		}
		return *out.Instances[0].InstanceId
	}
	s.hook = func(t *testing.T, group string, timeout int32) {
		t.Helper()
		_, err := s.groups.PutLifecycleHook(t.Context(), &autoscaling.PutLifecycleHookInput{
			AutoScalingGroupName: &group, LifecycleHookName: aws.String("drain"), HeartbeatTimeout: &timeout,
			LifecycleTransition: aws.String(asgemu.TerminateAt),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	s.suspend = func(t *testing.T, name string) {
		t.Helper()
		_, err := s.groups.SuspendProcesses(t.Context(), &autoscaling.SuspendProcessesInput{
			AutoScalingGroupName: &name, ScalingProcesses: []string{"Launch"},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	s.state = func(t *testing.T, id string) string {
		t.Helper()
		out, err := s.ec2.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{InstanceIds: []string{id}})
		if err != nil || len(out.Reservations) == 0 {
			t.Fatalf("describe instance: %v", err)
		}
		return string(out.Reservations[0].Instances[0].State.Name)
	}
}
