# What Debian's packages have and an installation has not.  Run by cpack before it makes the packages.
function(compress file)
    execute_process(COMMAND gzip -9n ${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

foreach(component IN LISTS CPACK_COMPONENTS_ALL)
    string(TOUPPER ${component} COMPONENT)
    set(package ${CPACK_DEBIAN_${COMPONENT}_PACKAGE_NAME})
    set(root ${CPACK_TEMPORARY_DIRECTORY}/${component}/usr)
    file(GLOB programs ${root}/bin/*)
    foreach(program IN LISTS programs)
        file(RPATH_REMOVE FILE ${program}) # of bundles
    endforeach()
    file(GLOB pages ${root}/share/man/man1/*.1)
    foreach(page IN LISTS pages)
        compress(${page})
    endforeach()
    set(folder ${root}/share/doc/${package})
    configure_file(${CMAKE_CURRENT_LIST_DIR}/../../LICENSE ${folder}/copyright COPYONLY)
    configure_file(${CMAKE_CURRENT_LIST_DIR}/changelog.in ${folder}/changelog @ONLY)
    compress(${folder}/changelog)
    file(REMOVE ${root}/share/doc/sparring/LICENSE) # it is the file copyright
    if(component STREQUAL cuda) # it looks where NVIDIA's packages put libraries
        file(WRITE ${root}/share/lintian/overrides/${package} "${package}: custom-library-search-path\n")
    endif()
endforeach()
