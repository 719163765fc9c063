# One rule for each kind of message that the daemon understands.
#
# One rule each, not one for all: CloudWatch counts matches and failed deliveries by rule,
# and a kind can be switched on or off without touching the others. Rules on AWS's own
# events cost nothing. Messages must arrive as they are: no input transformer.
# EventBridge cannot filter by instance tag, so the queue gets the messages of every
# instance of the account and region; the daemon knows its own.

locals {
  # Each key ends the name of a rule and has at most 20 characters.
  kinds = {
    interruption = {
      enabled     = true
      description = "EC2 takes a spot instance back in two minutes"
      pattern = {
        source      = ["aws.ec2"]
        detail-type = ["EC2 Spot Instance Interruption Warning"]
      }
    }
    rebalance = {
      enabled     = var.rebalance_recommendations
      description = "a spot instance is at higher risk"
      pattern = {
        source      = ["aws.ec2"]
        detail-type = ["EC2 Instance Rebalance Recommendation"]
      }
    }
    capacity-reservation = {
      enabled     = true
      description = "an instance's capacity reservation is taken back in two minutes"
      pattern = {
        source      = ["aws.ec2"]
        detail-type = ["EC2 Capacity Reservation Instance Interruption Warning"]
      }
    }
    capacity-block = {
      enabled     = true
      description = "a Capacity Block ends, its instances in ten minutes"
      pattern = {
        source      = ["aws.ec2"]
        detail-type = ["Capacity Block Expiration Warning"]
      }
    }
    capacity-block-2 = { # pages of AWS name the message in two ways
      enabled     = true
      description = "a Capacity Block ends, its instances in ten minutes (other name)"
      pattern = {
        source      = ["aws.ec2"]
        detail-type = ["Capacity Block Reservation Expiration Warning"]
      }
    }
    scheduled-event = {
      enabled     = var.scheduled_events
      description = "maintenance of instances is announced"
      pattern = {
        source      = ["aws.health"]
        detail-type = ["AWS Health Event"]
        detail = {
          service           = ["EC2"]
          eventTypeCategory = ["scheduledChange"]
        }
      }
    }
    state-change = {
      enabled     = var.state_changes
      description = "an instance stops or is gone"
      pattern = {
        source      = ["aws.ec2"]
        detail-type = ["EC2 Instance State-change Notification"]
        detail = {
          state = ["stopping", "stopped", "shutting-down", "terminated"] # an instance that starts needs no handling
        }
      }
    }
    terminate-hook = {
      enabled     = var.terminate_hooks
      description = "an Auto Scaling group waits to terminate an instance"
      pattern = {
        source      = ["aws.autoscaling"]
        detail-type = ["EC2 Instance-terminate Lifecycle Action"]
      }
    }
    launch-hook = {
      enabled     = var.launch_hooks
      description = "an Auto Scaling group waits for an instance that it launched"
      pattern = {
        source      = ["aws.autoscaling"]
        detail-type = ["EC2 Instance-launch Lifecycle Action"]
      }
    }
  }

  rules = { for key, kind in local.kinds : key => kind if kind.enabled }
}

resource "aws_cloudwatch_event_rule" "kind" {
  for_each = local.rules

  name          = "${local.name}-${each.key}"
  description   = "spot-handler ${var.cluster_name}: ${each.value.description}"
  event_pattern = jsonencode(each.value.pattern)
  tags          = var.tags
}

resource "aws_cloudwatch_event_target" "queue" {
  for_each = local.rules

  rule      = aws_cloudwatch_event_rule.kind[each.key].name
  target_id = "queue"
  arn       = aws_sqs_queue.queue.arn

  retry_policy {
    maximum_event_age_in_seconds = var.message_retention_seconds
    maximum_retry_attempts       = 185 # the maximum: the age decides
  }

  dead_letter_config {
    arn = aws_sqs_queue.dead_letters.arn
  }
}
