# The packages' names, descriptions, dependencies and scripts.  Read by cpack before it installs anything.
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)

# The last commit signs the changelog and, without CPACK_PACKAGE_CONTACT, the packages.
execute_process(COMMAND git log -1 "--format=%h;%an <%ae>;%aD" WORKING_DIRECTORY ${CMAKE_CURRENT_LIST_DIR}
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(commit)
    list(GET commit 0 SPARRING_COMMIT)
    list(GET commit 1 author)
    list(GET commit 2 SPARRING_DATE)
else()
    set(SPARRING_COMMIT "an archive of the sources")
    execute_process(COMMAND date -R OUTPUT_VARIABLE SPARRING_DATE OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT CPACK_PACKAGE_CONTACT)
    set(CPACK_PACKAGE_CONTACT "${author}")
endif()

# service(COMPONENT UNIT INSTANCES STATE): the scripts for a unit of systemd; STATE is what purge removes.
function(service component UNIT INSTANCES STATE)
    set(folder ${CPACK_TOPLEVEL_DIRECTORY}/scripts/${component})
    foreach(script postinst prerm postrm)
        configure_file(${CMAKE_CURRENT_LIST_DIR}/${script}.in ${folder}/${script} @ONLY)
        list(APPEND scripts ${folder}/${script})
    endforeach()
    string(TOUPPER ${component} COMPONENT)
    set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_CONTROL_EXTRA "${scripts}" PARENT_SCOPE)
endfunction()

set(CPACK_DEBIAN_SPARRING_PACKAGE_NAME sparring)
set(CPACK_COMPONENT_SPARRING_DEPENDS server)
set(CPACK_DEBIAN_SPARRING_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_SPARRING_PACKAGE_RECOMMENDS "gnuplot-nox, python3")
set(CPACK_DEBIAN_SPARRING_PACKAGE_SUGGESTS "sparring-doc, sparring-mpi, sparring-cuda, openssh-client, iproute2")
set(CPACK_DEBIAN_SPARRING_DESCRIPTION "parameter servers compared with all-reduce: tool and workers
Trains one job through a parameter server and through ring all-reduce, in
alternating runs, and reports which is faster and why.  Has the workers,
the launcher, the experiments and a standby daemon for systemd.")
service(sparring sparring-standby.service sparring-standby.service "")

set(CPACK_DEBIAN_SERVER_PACKAGE_NAME sparring-server)
set(CPACK_DEBIAN_SERVER_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_SERVER_DESCRIPTION "parameter server of sparring
One shard of the parameters of a training job as a gRPC service, with
bulk-synchronous, stale-synchronous and asynchronous modes, and its unit for
systemd: one instance per port, which systemd gives a user of its own.")
service(server sparring-server@.service "sparring-server@*.service" "/var/lib/sparring /var/lib/private/sparring")

set(CPACK_DEBIAN_DOC_PACKAGE_NAME sparring-doc)
set(CPACK_DEBIAN_DOC_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DOC_PACKAGE_SECTION doc)
set(CPACK_DEBIAN_DOC_DESCRIPTION "documentation of sparring
How to run jobs, write experiments, operate servers and read reports, the
definition of every figure, and the measured results.")

set(CPACK_DEBIAN_MPI_PACKAGE_NAME sparring-mpi)
set(CPACK_COMPONENT_MPI_DEPENDS sparring)
set(CPACK_DEBIAN_MPI_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_MPI_DESCRIPTION "MPI as a peer in the benchmarks of sparring
The module through which workers of sparring reduce with the all-reduce of
the installed MPI, to be measured against their own.")

# The libraries of CUDA are NVIDIA's packages or none; the module finds them when it is loaded.
set(CPACK_DEBIAN_CUDA_PACKAGE_NAME sparring-cuda)
set(CPACK_COMPONENT_CUDA_DEPENDS sparring)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "libc6, libstdc++6")
set(CPACK_DEBIAN_CUDA_DESCRIPTION "GPUs for the workers of sparring
The module through which workers of sparring compute on NVIDIA GPUs and
reduce with NCCL.  Needs NVIDIA's driver, CUDA runtime, cuBLAS and NCCL.")
