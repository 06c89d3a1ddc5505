-- For job_submit.lua of slurmctld (JobSubmitPlugins=lua): what binds emulated jobs. Put
-- the body of crystal_job_submit into your slurm_job_submit.
--
-- The plugin's options come as environment of the job (spank_job_env). Here users of the
-- QOS "normal" may emulate on up to four nodes; a QOS of your own (sacctmgr add qos
-- emulate MaxTRESPerUser=node=4 ...) bounds all jobs of a user together.
local nodes_max, qos = 4, "emulate"

local function is_emulated(job)
    local environment = job.spank_job_env
    for i = 0, (job.spank_job_env_size or 0) - 1 do
        if string.match(environment[i] or "",
                        "SPANK_OPTION_crystal_crystal_logical_ranks=") then
            return true
        end
    end
    return false
end

function crystal_job_submit(job, partitions, uid)
    if not is_emulated(job) then
        return slurm.SUCCESS
    end
    if job.max_nodes ~= slurm.NO_VAL and job.max_nodes > nodes_max then
        slurm.log_user("emulated jobs have at most %d nodes", nodes_max)
        return slurm.ERROR
    end
    if qos and not job.qos then
        job.qos = qos
    end
    return slurm.SUCCESS
end
