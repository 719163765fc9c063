locals {
  tag = coalesce(var.tag_key, "kubernetes.io/cluster/${var.cluster_name}")

  # What `spot-handler queue` needs from SQS.
  read_queue = [{
    Sid    = "ReadQueue"
    Effect = "Allow"
    Action = [
      "sqs:ReceiveMessage",          # long polls
      "sqs:DeleteMessage",           # messages that are recorded on their node, or not ours
      "sqs:ChangeMessageVisibility", # keep a message from others while handling it, give it back on a stop
      "sqs:GetQueueAttributes",      # whether there is a redrive policy
    ]
    Resource = aws_sqs_queue.queue.arn
  }]

  # SQS uses the key in the caller's name.
  read_encrypted_queue = [{
    Sid      = "ReadEncryptedQueue"
    Effect   = "Allow"
    Action   = "kms:Decrypt"
    Resource = var.kms_key_arn
  }]

  # What replacing nodes of Auto Scaling groups and completing their lifecycle hooks also
  # needs. AWS cannot bind the Describe actions to resources.
  replace_nodes = [
    {
      Sid    = "KnowGroups"
      Effect = "Allow"
      Action = [
        "autoscaling:DescribeAutoScalingInstances",
        "autoscaling:DescribeAutoScalingGroups",
        "autoscaling:DescribeLifecycleHooks",
      ]
      Resource = "*"
    },
    {
      Sid       = "DetachNodes"
      Effect    = "Allow"
      Action    = "autoscaling:DetachInstances"
      Resource  = "arn:${local.partition}:autoscaling:${local.region}:${local.account}:autoScalingGroup:*:autoScalingGroupName/*"
      Condition = { StringEquals = { "autoscaling:ResourceTag/${local.tag}" = var.tag_value } }
    },
    {
      Sid    = "AnswerHooks"
      Effect = "Allow"
      Action = [
        "autoscaling:CompleteLifecycleAction",
        "autoscaling:RecordLifecycleActionHeartbeat",
      ]
      Resource  = "arn:${local.partition}:autoscaling:${local.region}:${local.account}:autoScalingGroup:*:autoScalingGroupName/*"
      Condition = { StringEquals = { "autoscaling:ResourceTag/${local.tag}" = var.tag_value } }
    },
    {
      Sid       = "TerminateNodes"
      Effect    = "Allow"
      Action    = "ec2:TerminateInstances"
      Resource  = "arn:${local.partition}:ec2:${local.region}:${local.account}:instance/*"
      Condition = { StringEquals = { "ec2:ResourceTag/${local.tag}" = var.tag_value } }
    },
  ]

  # Either way the role is for one ServiceAccount of one cluster.
  trust = {
    pod-identity = {
      Sid       = "PodIdentity"
      Effect    = "Allow"
      Principal = { Service = "pods.eks.amazonaws.com" }
      Action    = ["sts:AssumeRole", "sts:TagSession"]
      Condition = {
        StringEquals = { # the tags that EKS gives the session
          "aws:RequestTag/eks-cluster-arn"            = "arn:${local.partition}:eks:${local.region}:${local.account}:cluster/${var.cluster_name}"
          "aws:RequestTag/kubernetes-namespace"       = var.namespace
          "aws:RequestTag/kubernetes-service-account" = var.service_account
        }
      }
    }
    irsa = {
      Sid       = "ServiceAccount"
      Effect    = "Allow"
      Principal = { Federated = "arn:${local.partition}:iam::${local.account}:oidc-provider/${var.oidc_provider}" }
      Action    = "sts:AssumeRoleWithWebIdentity"
      Condition = {
        StringEquals = { # the audience is the same in all partitions
          "${var.oidc_provider}:aud" = "sts.amazonaws.com"
          "${var.oidc_provider}:sub" = "system:serviceaccount:${var.namespace}:${var.service_account}"
        }
      }
    }
  }
}

resource "aws_iam_policy" "queue" {
  name        = "${local.name}-${local.region}" # IAM has no regions
  description = "spot-handler ${var.cluster_name}: read its queue"
  tags        = var.tags

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      local.read_queue,
      var.kms_key_arn == null ? [] : local.read_encrypted_queue,
    )
  })
}

resource "aws_iam_policy" "auto_scaling_groups" {
  count = var.auto_scaling_groups ? 1 : 0

  name        = "${local.name}-${local.region}-auto-scaling-groups"
  description = "spot-handler ${var.cluster_name}: replace nodes of Auto Scaling groups"
  tags        = var.tags

  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = local.replace_nodes
  })
}

resource "aws_iam_role" "queue" {
  count = var.credentials == "none" ? 0 : 1

  name                 = "${local.name}-${local.region}"
  description          = "spot-handler ${var.cluster_name}"
  permissions_boundary = var.permissions_boundary_arn
  tags                 = var.tags

  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [local.trust[var.credentials]]
  })

  lifecycle {
    precondition {
      condition     = var.credentials != "irsa" || var.oidc_provider != ""
      error_message = "credentials = \"irsa\" needs oidc_provider."
    }
  }
}

resource "aws_iam_role_policy_attachment" "queue" {
  count = var.credentials == "none" ? 0 : 1

  role       = aws_iam_role.queue[0].name
  policy_arn = aws_iam_policy.queue.arn
}

resource "aws_iam_role_policy_attachment" "auto_scaling_groups" {
  count = var.auto_scaling_groups && var.credentials != "none" ? 1 : 0

  role       = aws_iam_role.queue[0].name
  policy_arn = aws_iam_policy.auto_scaling_groups[0].arn
}

resource "aws_eks_pod_identity_association" "queue" {
  count = var.credentials == "pod-identity" ? 1 : 0

  cluster_name    = var.cluster_name
  namespace       = var.namespace
  service_account = var.service_account
  role_arn        = aws_iam_role.queue[0].arn
  tags            = var.tags
}
